"""The accelerator itself in RTL: the array of PEs and the three ADA-GP designs, simulated and synthesised."""
