"""AdaGP in other libraries' training loops; each module imports its library, and this package imports none."""
