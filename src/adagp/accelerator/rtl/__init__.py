"""The accelerator in RTL: the array of PEs and the three ADA-GP designs, simulated and synthesised."""
