"""The findings in sentences, the most valuable first; "nothing" is an answer too."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from adagp.advice.messages import MessagesFinding
from adagp.advice.option import Option
from adagp.advice.result import Advice, SourceFinding

SMALLER = 0.9
"""Memory below this share is worth a word."""


def with_verdict(advice: Advice) -> Advice:
    """The same findings, put into words."""
    return replace(advice, verdict=tuple(_sentences(advice)))


def _sentences(advice: Advice) -> Iterator[str]:
    yield _headline(advice)
    yield _where_time_goes(advice)
    if advice.messages is not None:
        yield _of_messages(advice.messages)
    by_name = {source.option.name: source for source in advice.sources}
    for option in advice.options():
        source = by_name.get(option.name)
        yield _of_source(source) if source else _of_option(option, advice)
    grouped: dict[str, list[str]] = {}
    for name, reason in advice.not_measured.items():
        grouped.setdefault(reason, []).append(name)
    for reason, names in grouped.items():
        yield f"Not measured: {', '.join(names)}; {reason}."


def _headline(advice: Advice) -> str:
    """What to do, in one sentence."""
    options = advice.options()
    if not options:
        return "There was no time to measure anything but the training as it is; see below how long it takes."
    paying = [option for option in options if option.pays]
    exact = [option for option in paying if option.exact]
    if exact:
        best = exact[0]
        return f"Use {best.name}: {best.speed_up.text()} x the speed{_over(best)}, and the gradients stay exact."
    if paying:
        best = paying[0]
        return f"No exact option was seen to pay; {best.name} is worth {best.worth:.2f} x, with inexact gradients."
    bounds = [option.speed_up.high for option in options if option.exact]
    most = f"; no exact option is more than {max(bounds):.2f} x as fast" if bounds and max(bounds) < inf else ""
    return f"Nothing that was measured makes this training faster on this machine{most}."


def _over(option: Option) -> str:
    return "" if option.over == Option.over else f" over {option.over}"


def _where_time_goes(advice: Advice) -> str:
    total = sum(advice.phases.values())
    parts = ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in advice.phases.items())
    return f"A batch takes {1e3 * advice.seconds:.1f} ms as it is: {parts}."


def _of_messages(messages: MessagesFinding) -> str:
    sent = f"Messages of {messages.ranks} ranks: {messages.sent_bytes / 1e6:.2f} MB a batch from each"
    without = messages.without
    if without.high == inf:
        return f"{sent}; there was no time to measure how long they take."
    if not without.is_faster:
        return f"{sent}; their time is not seen, {without.text()} x the speed without them."
    least, most = 100 * (1 - 1 / without.low), 100 * (1 - 1 / without.high)
    return f"{sent}, {1e3 * messages.seconds:.1f} ms or {least:.0f} to {most:.0f} % of its time."


def _of_option(option: Option, advice: Advice) -> str:
    text, start = f"{option.speed_up.text()} x the speed", ""
    if option.start_seconds >= 1:
        start = f", {option.start_seconds:.0f} s to start"
    more = _over(option)
    if option.pays:
        if option.exact:
            return f"{option.name}: {text}{more}, exact{start}."
        noise = advice.plan.added_variance if advice.plan else None
        price = f"{100 * noise:.0f} % more noise" if noise is not None else f"{100 * option.kept:.0f} % of the progress"
        fewer = f"in the time it takes, plain backpropagation does {100 * option.plain_batches:.0f} % of the batches"
        return f"{option.name}: {text} for {price}: worth {option.worth:.2f} x; {fewer}."
    if option.exact and option.peak_bytes is not None and option.peak_bytes < SMALLER * advice.peak_bytes:
        memory = f"{option.peak_bytes / 1e6:.0f} MB instead of {advice.peak_bytes / 1e6:.0f}"
        return "\n".join([f"{option.name}: {memory}, exact, at {text}:", *(f"    {line}" for line in option.code)])
    if option.speed_up.is_slower:
        return f"{option.name}: {text}{more}, slower{start}."
    if not option.exact:
        return f"{option.name}: {text}, and a step keeps {100 * option.kept:.0f} % of the progress: not sure to pay."
    return f"{option.name}: {_no_difference(option)}{start}."


def _no_difference(option: Option) -> str:
    estimate = option.speed_up
    needed = f"about {estimate.seconds_needed:.0f} s of rounds would be needed"
    if estimate.high == inf:
        too_few = "1 round tells" if estimate.rounds == 1 else f"{estimate.rounds} rounds tell"
        return f"{too_few} nothing; {needed}"
    return f"no difference seen, {estimate.low:.2f} to {estimate.high:.2f} x; {needed} to see one"


def _of_source(source: SourceFinding) -> str:
    option = source.option
    share = 100 * option.plain_batches
    found = f"cosine {source.cosine:.2f}, {100 * option.kept:.0f} % of the progress in {share:.0f} % of the time"
    if source.added_variance is not None:
        found += f", {100 * source.added_variance:.0f} % more noise"
    if option.pays:
        return f"{option.name}: {found}: worth {option.worth:.2f} x."
    if option.caveat and option.speed_up.low * option.kept > 1:
        return f"{option.name}: {found}: {option.caveat}; raise it before you try this."
    if option.speed_up.high * option.kept < 1:
        worthless = (
            "worth nothing here" if option.worth < 0.1 else f"worth {option.worth:.2f} x, less than exact batches"
        )
        return f"{option.name}: {found}: {worthless}."
    return f"{option.name}: {found}; {_no_difference(option)}."
