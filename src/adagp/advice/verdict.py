"""The findings in sentences, the most valuable first; "nothing" is an answer too."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from adagp.advice.exact_study import NO_TIME
from adagp.advice.messages import MessagesFinding
from adagp.advice.option import Option
from adagp.advice.result import Advice, SourceFinding

SMALLER = 0.9
"""Memory below this share is worth a word."""
MAY_PAY = 1.1
"""An interval that ends above leaves open whether the option is worth having."""


def with_verdict(advice: Advice) -> Advice:
    """The same findings, put into words."""
    return replace(advice, verdict=tuple(_sentences(advice)))


def _sentences(advice: Advice) -> Iterator[str]:
    yield _headline(advice)
    yield _where_time_goes(advice)
    if advice.messages is not None:
        yield _of_messages(advice.messages)
    by_name = {source.option.name: source for source in advice.sources}
    plan = advice.plan.option if advice.plan else None
    for option in advice.options():
        if option.name in by_name:
            yield _of_source(by_name[option.name], advice)
        else:
            yield _of_plan(option, advice) if option is plan else _of_exact(option, advice)
    grouped: dict[str, list[str]] = {}
    for name, reason in advice.not_measured.items():
        grouped.setdefault(reason, []).append(name)
    for reason, names in grouped.items():
        yield f"Not measured: {', '.join(names)}; {reason}."


def _headline(advice: Advice) -> str:
    """What to do, in one sentence."""
    options = advice.options()
    if not options:
        if any(reason.startswith(NO_TIME) for reason in advice.not_measured.values()):
            return "There was no time to measure anything but the training as it is; see below how long it takes."
        return "Nothing could be measured but the training as it is; see below why."
    paying = [option for option in options if option.pays]
    exact = [option for option in paying if option.exact]
    if exact:
        return f"Use {exact[0].name}: {exact[0].speed_up.text()} x the speed, and the gradients stay exact."
    if paying:
        best = paying[0]
        return f"No exact option was seen to pay; {best.name} is worth {best.worth:.2f} x, with inexact gradients."
    single = [option for option in options if option.exact and option.last_part is None]
    likely = max((one for one in single if one.finding == "unclear"), key=lambda one: one.speed_up.ratio, default=None)
    if likely is not None and likely.speed_up.high > MAY_PAY:
        found = "too few rounds tell" if likely.speed_up.high == inf else f"{likely.speed_up.text()} x"
        longer = f" A{more[1:]}." if (more := _more_time(likely, advice)) else ""
        return f"Nothing is sure to make this training faster; {likely.name} may, {found}.{longer}"
    most = max((option.speed_up.high for option in single), default=None)
    bound = "" if most is None else f"; no exact option is more than {most:.2f} x as fast"
    return f"Nothing that was measured makes this training faster on this machine{bound}."


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


def _of_exact(option: Option, advice: Advice) -> str:
    text = f"{option.name}: {option.speed_up.text()} x the speed"
    start = f", {option.start_seconds:.0f} s to start" if option.start_seconds >= 1 else ""
    last, last_name = option.last_part, option.name.rpartition(" + ")[2]
    share = f", {last.text()} x of it by {last_name}" if last else ""
    if option.pays:
        return f"{text}{share}, exact{start}."
    if _is_smaller(option, advice):
        memory = f"{_megabytes(option.peak_bytes)} MB instead of {_megabytes(advice.peak_bytes)}"
        head = f"{option.name}: {memory}, exact, at {option.speed_up.text()} x the speed:"
        return "\n".join([head, *(f"    {line}" for line in option.code)])
    if option.speed_up.is_slower or (last and last.is_slower):
        return f"{text}{share}, slower{start}."
    if last and option.speed_up.is_faster:
        return f"{text}, but {last_name} was not seen to add to it, {last.text()} x{start}."
    return f"{option.name}: {_no_difference(option, advice)}{start}."


def _is_smaller(option: Option, advice: Advice) -> bool:
    if option.peak_bytes is None or advice.peak_bytes is None:
        return False
    return option.peak_bytes < SMALLER * advice.peak_bytes


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.0f}"


def _of_plan(option: Option, advice: Advice) -> str:
    """The plan with the sources in it, its price and its rival."""
    used = Counter(layer.source for layer in advice.layers if layer.source != "backprop")
    parts = ", ".join(f"{source} on {count} layer{'s' if count > 1 else ''}" for source, count in used.items())
    text = f"{option.name} ({parts}): {option.speed_up.text()} x the speed"
    progress = f"{100 * option.kept:.0f} % of the progress"
    if not option.pays:
        return f"{text}, and a step keeps {progress}: not sure to pay."
    noise = advice.plan.added_variance if advice.plan else None
    price = progress if noise is None else f"{100 * noise:.0f} % more noise"
    fewer = f"in the time it takes, plain backpropagation does {100 * option.plain_batches:.0f} % of the batches"
    return f"{text} for {price}: worth {option.worth:.2f} x; {fewer}."


def _no_difference(option: Option, advice: Advice) -> str:
    found = option.speed_up
    if found.high == inf:
        too_few = "1 round tells" if found.rounds == 1 else f"{found.rounds} rounds tell"
        known = f"{too_few} nothing"
    else:
        known = f"no difference seen, {found.low:.2f} to {found.high:.2f} x"
    return "; ".join(filter(None, [known, _more_time(option, advice)]))


def _more_time(option: Option, advice: Advice) -> str:
    """How long would tell more; empty where no time would."""
    found = option.speed_up
    if not found.is_open or found.seconds_needed <= advice.spent:
        return ""
    return f"about {found.seconds_needed:.0f} s would tell more"


def _of_source(source: SourceFinding, advice: Advice) -> str:
    option = source.option
    share = 100 * option.plain_batches
    found = f"cosine {source.cosine:.2f}, {100 * option.kept:.0f} % of the progress in {share:.0f} % of the time"
    if source.added_variance is not None:
        found += f", {100 * source.added_variance:.0f} % more noise"
    if option.pays:
        return f"{option.name}: {found}: worth {option.worth:.2f} x."
    if option.caveat and option.speed_up.low * option.kept > 1:
        return f"{option.name}: {found}: {option.caveat}; raise it before you try this."
    if option.most_worth < 1:
        worthless = (
            "worth nothing here" if option.worth < 0.1 else f"worth {option.worth:.2f} x, less than exact batches"
        )
        return f"{option.name}: {found}: {worthless}."
    if option.speed_up.high == inf:
        return f"{option.name}: {found}; {_no_difference(option, advice)}."
    least, most = option.speed_up.low * option.kept, option.speed_up.high * option.kept
    return f"{option.name}: {found}: worth {least:.2f} to {most:.2f} x, not sure to pay."
