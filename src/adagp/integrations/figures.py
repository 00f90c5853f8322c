"""What an integration writes into its library's logs."""

from statistics import fmean

from adagp._engine.engine import AdaGP


def log_figures(gp: AdaGP) -> dict[str, float]:
    """The counts of `gp.counts()`, and cosine and norm ratio of the predictions averaged over the layers."""
    figures = {f"adagp_{event}": float(count) for event, count in sorted(gp.counts().items())}
    qualities = list(gp.quality().values())
    if qualities:
        figures["adagp_cosine"] = fmean(quality.cosine for quality in qualities)
        figures["adagp_norm_ratio"] = fmean(quality.norm_ratio for quality in qualities)
    return figures
