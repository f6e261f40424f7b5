"""Routing of one message through the graph: each exchange once, each queue once.

Compiled, because publishers whose keys never repeat need it for every message. Its cost is bounded:
a walk may follow as many bindings as lead to new queues, and `vain_max` others, which lead to
places found before. A graph may have any number of those: all exchanges bound to all others,
thousands of patterns for one queue. The filter of a binding counts as many steps as it takes time,
wherever the binding leads.
"""

from leveret.core.routing.router import RoutingLimitError
from leveret.core.exchanges.recent_history import RecentHistoryRouter
from leveret.core.exchanges.topic import TopicRouter
from leveret.core.routing.exchange import Exchange

# Maximum steps of one walk that lead to nothing new, and steps for matching at one exchange: some
# milliseconds. No reasonable graph needs more.
VAIN_STEPS_MAX = 25_000
ASKING_STEPS = 4
# Bytes of headers per step, for compiled code that looks for the fields of a filter, and for
# evaluating its SQL, which takes `Binding.judgement_steps` in addition.
LOOKED_THROUGH_BYTES = 512
JUDGED_BYTES = 1024


def follow(
    start, keys, message, dict exchanges not None, Py_ssize_t vain_max=VAIN_STEPS_MAX, *, bint is_published=True
):
    """Return (queues, whether these are all) of a message published to `start`.

    The keys after the first are those of CC and BCC. `exchanges` are all by name: an exchange
    without a match routes to its alternate exchange. Exchanges on the way keep for new bindings
    what `is_published` only.
    """
    cdef dict queues = {}
    cdef dict seen = {start: None}
    cdef list waiting = [start]
    cdef Py_ssize_t steps = 0, asking = ASKING_STEPS
    cdef Py_ssize_t looking = -1, judging = 0    # steps, of the headers alone; -1: not known yet
    cdef bint matched, wanted
    cdef tuple all_keys = tuple(keys)
    cdef tuple first_key = all_keys[:1]
    while waiting:
        exchange = waiting.pop()
        router = exchange.router
        matched = False
        for key in all_keys if router.takes_each_key else first_key:
            steps += asking
            try:
                matches = router.match(key, message)
            except RoutingLimitError:
                return list(queues), False
            if type(router) is TopicRouter:
                steps += router.walked
            elif is_published and type(router) is RecentHistoryRouter:
                router.keep(message)
            for binding in matches:
                steps += 1
                destination = binding.destination
                if destination.gone:
                    continue
                if binding.filter is not None:
                    if message is None:
                        continue
                    if looking < 0:
                        looking = len(message.header) // LOOKED_THROUGH_BYTES
                        judging = len(message.header) // JUDGED_BYTES
                    wanted = binding.lets_through(message)
                    steps += looking
                    if binding.filter.judgements:
                        steps += judging + binding.judgement_steps
                    if steps - len(queues) > vain_max:
                        return list(queues), False
                    if not wanted:
                        continue
                matched = True
                if type(destination) is Exchange:
                    if destination not in seen:
                        seen[destination] = None
                        waiting.append(destination)
                else:
                    queues[destination] = None
            if steps - len(queues) > vain_max:
                return list(queues), False
        if not matched and exchange.alternate is not None:
            alternate = exchanges.get(exchange.alternate)
            if alternate is not None and alternate not in seen:
                seen[alternate] = None
                waiting.append(alternate)
    return list(queues), True
