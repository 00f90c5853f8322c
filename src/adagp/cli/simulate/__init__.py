"""`adagp simulate`: costs of a network, a layer, a sweep or a search for the best array, by the accelerator model."""

from adagp.cli.simulate.app import simulate_app
from adagp.cli.simulate.layer import layer_command
from adagp.cli.simulate.network import network_command
from adagp.cli.simulate.search import search_command
from adagp.cli.simulate.sweep import sweep_command

__all__ = ["layer_command", "network_command", "search_command", "simulate_app", "sweep_command"]
