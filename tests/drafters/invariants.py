"""What every draft must satisfy: parents first, distinct siblings, closed under ancestors, scores that never grow, EMPTY rows last."""
import numpy as np

from specjax.types import EMPTY, FORCED, RIDER, Draft


def check_draft(draft: Draft) -> None:
    """Asserts the invariants of a deterministic draft on the host."""
    tokens, parents, kind, score = (np.asarray(x) for x in (draft.tokens, draft.parents, draft.kind, draft.score))
    assert (kind[:, 0] == FORCED).all() and (parents[:, 0] == 0).all()
    for b in range(tokens.shape[0]):
        seen = set()
        live = [r for r in range(1, tokens.shape[1]) if kind[b, r] != EMPTY]
        assert live == list(range(1, 1 + len(live))), "empty rows stand last"
        for r in live:
            p = int(parents[b, r])
            assert p < r and (p == 0 or kind[b, p] != EMPTY), "parents come first and exist"
            assert (p, int(tokens[b, r])) not in seen or kind[b, r] == RIDER, "siblings are distinct"
            assert tokens[b, r] >= 0 and (p == 0 or kind[b, r] == RIDER or kind[b, p] != RIDER)
            assert score[b, r] <= score[b, p] + 1e-6, "a score exceeds its parent's"
            if kind[b, r] != RIDER:
                seen.add((p, int(tokens[b, r])))
