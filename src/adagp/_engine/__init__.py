"""The engine: what happens in one batch. Private; users meet it as `adagp.AdaGP`."""
