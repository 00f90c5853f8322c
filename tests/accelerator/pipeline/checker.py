"""A slow, obviously right pipeline: a clock that ticks, devices that look every tick whether they may start.

Nothing here is shared with the simulator but the plain facts of a timeline (device, stage, batch, ...). Costs are whole
numbers. Rules, word by word:

- a forward needs the forward of the stage before; a backward needs the backward of the stage after;
- a backward needs its own forward, and with local losses nothing else;
- where the backward is split, its second part, the gradient of the weights, needs the first;
- a batch may use a stage only when *all* that the batch before does on that stage is done, by every holder;
- what another device did arrives `communication` ticks after it was done;
- a device does one thing at a time.
"""

from functools import cache
from itertools import pairwise


class Job:
    def __init__(self, backward, batch, micro_batch, stage, device, duration, weights=False, is_local=False):
        self.backward, self.batch, self.micro_batch, self.stage = backward, batch, micro_batch, stage
        self.device, self.duration, self.weights, self.is_local = device, duration, weights, is_local
        self.start = self.end = None

    def __repr__(self):
        kind = "W" if self.weights else "B" if self.backward else "F"
        return f"{kind}(batch {self.batch}, {self.micro_batch}, stage {self.stage})"


def jobs_of(scheme, devices, microbatches, phases, forward, backward, gp_forward, weights):
    """Every job there is, in no order; `forward` etc. give the cost of each stage."""
    is_local = scheme == "local"
    jobs = []
    for batch, phase in enumerate(phases):
        for micro_batch in range(microbatches):
            downwards = scheme != "chimera" or 2 * micro_batch < microbatches
            for stage in range(devices):
                device = stage if downwards else devices - 1 - stage
                first = gp_forward if phase == "GP" else forward
                jobs.append(Job(False, batch, micro_batch, stage, device, first[stage]))
                if phase != "GP":
                    second = weights[stage] if scheme == "zero-bubble" else 0
                    first_part = backward[stage] - second
                    jobs.append(Job(True, batch, micro_batch, stage, device, first_part, is_local=is_local))
                    if second:
                        jobs.append(Job(True, batch, micro_batch, stage, device, second, weights=True))
    return jobs


def needed(job, jobs):
    """Whatever must be done before a job."""
    for other in jobs:
        same = (other.batch, other.micro_batch) == (job.batch, job.micro_batch)
        if same and not job.backward and not other.backward and other.stage == job.stage - 1:
            yield other
        if job.weights:
            if same and other.backward and not other.weights and other.stage == job.stage:
                yield other
            continue
        if (
            same
            and job.backward
            and not job.is_local
            and other.backward
            and not other.weights
            and other.stage == job.stage + 1
        ):
            yield other
        if same and job.backward and not other.backward and other.stage == job.stage:
            yield other
        if other.batch == job.batch - 1 and other.stage == job.stage:
            yield other


def may_start(job, needs, now, communication):
    return all(
        other.end is not None and other.end + (communication if other.device != job.device else 0) <= now
        for other in needs
    )


def run(jobs, choose, communication, devices):
    """Tick until all is done; `choose(device, startable, mine)` picks the job that an idle device starts, or None."""
    needs = {job: list(needed(job, jobs)) for job in jobs}
    busy_until = [0] * devices
    waiting = set(jobs)
    for now in range(1 + sum(job.duration + communication for job in jobs)):  # longer than one after the other
        if not waiting:
            break
        for device in range(devices):
            if busy_until[device] > now:
                continue
            mine = [job for job in waiting if job.device == device]
            startable = [job for job in mine if may_start(job, needs[job], now, communication)]
            job = choose(device, startable, mine)
            if job is not None:
                job.start, job.end = now, now + job.duration
                busy_until[device] = job.end
                waiting.remove(job)
    assert not waiting, f"stuck: {waiting}"
    return max(job.end for job in jobs)


def in_given_order(orders):
    """Devices that do their jobs in a given order and start each as soon as they may."""
    left = [list(order) for order in orders]

    def choose(device, startable, mine):
        if left[device] and left[device][0] in startable:
            return left[device].pop(0)
        return None

    return choose


def gpipe_policy(device, startable, mine):
    """The first micro-batch first; no backward while a forward of the batch is left."""
    batch = min((job.batch for job in mine), default=0)
    forwards_left = any(job.batch == batch and not job.backward for job in mine)
    able = [job for job in startable if job.batch == batch and job.backward != forwards_left]
    return min(able, key=lambda job: job.micro_batch, default=None)


def dapple_policy(devices):
    """A backward if there is one; else a forward, while fewer are under way than stages are left to the end."""
    done = {}

    def choose(device, startable, mine):
        backwards = [job for job in startable if job.backward]
        forwards = [job for job in startable if not job.backward]
        under_way = done.setdefault(device, 0)
        if backwards:
            done[device] -= 1
            return min(backwards, key=lambda job: job.micro_batch)
        if not forwards:
            return None
        job = min(forwards, key=lambda job: (job.batch, job.micro_batch))
        learns = any(other.backward and other.batch == job.batch for other in mine)
        if learns and under_way >= devices - device:
            return None
        done[device] += learns
        return job

    return choose


def least_steps(jobs, devices, in_order, most):
    """The fewest steps of all orders, by trying them all (messages take no time).

    `in_order` are lists of jobs of which each must be done in its order; whatever they leave open is tried in every
    way. `most` is known to be possible; only what is shorter is searched for. (Giffler and Thompson: some job ends
    first of all that could be next; whatever could start on its device before that end is tried as the next there.)
    """
    before = {job: set(needed(job, jobs)) for job in jobs}
    for order in in_order:
        for earlier, later in pairwise(order):
            before[later].add(earlier)
    after = {job: [other for other in jobs if job in before[other]] for job in jobs}

    @cache
    def chain(job):
        return job.duration + max((chain(other) for other in after[job]), default=0)

    best = most

    def search(ends, free, op):
        nonlocal best
        if len(ends) == len(jobs):
            best = max(free)
            return
        able = [
            (max([free[job.device], *(ends[other] for other in before[job])]), job)
            for job in jobs
            if job not in ends and all(other in ends for other in before[job])
        ]
        if max(start + chain(job) for start, job in able) >= best:
            return
        if max(time + left for time, left in zip(free, op, strict=True)) >= best:
            return
        first_end, device = min((start + job.duration, job.device) for start, job in able)
        for start, job in sorted(able, key=lambda pair: pair[0] - chain(pair[1])):
            if job.device == device and start < first_end:
                end = start + job.duration
                search(
                    {**ends, job: end},
                    [end if place == device else time for place, time in enumerate(free)],
                    [left - job.duration * (place == device) for place, left in enumerate(op)],
                )

    search({}, [0] * devices, [sum(job.duration for job in jobs if job.device == place) for place in range(devices)])
    return best
