"""The edit drafter once more, in Python and float64, one sequence, one position at a time: what the fast one must equal."""
from __future__ import annotations

from specjax.drafters.edit import RATES


class Twin:
    """The pointer's law over ``source, -1, prompt, output`` and the tree drafted from it.

    Args:
      source, prompt: token ids. size: width that the source is padded to, at least its length. rates: of the copy model.
    """

    def __init__(self, source, prompt, size, rates=RATES):
        self.rates, self.s = rates, len(source)
        self.c = [*source, *[-1] * (size + 1 - self.s), *prompt]
        self.out, self.run = len(self.c), rates.begin
        self.next, self.stay = self.predict({0: 1.0}, {})

    def can(self, j):
        return 0 <= j < self.s or self.out <= j < len(self.c)

    def predict(self, copy, wait):
        r = self.rates
        insert, skip, jump = r.leave
        again, here, behind, anywhere = r.waiting
        h = r.go_on[1] / (self.run + sum(r.go_on))
        following, stay = {}, {}

        def add(to, j, w):
            to[j] = to.get(j, 0.0) + w

        for j, w in copy.items():
            add(following, j, (1 - h) * w)
            add(stay, j, insert * h * w)
        for j, w in wait.items():
            add(following, j, here * w)
            add(stay, j, again * w)
        for law, rate in ((copy, skip * h), (wait, behind)):
            for j, w in law.items():
                for k in range(1, 2**r.doublings + 1):
                    if j + k <= self.s:
                        add(following, j + k, rate * w * (1 - r.skip) * r.skip ** (k - 1))
        places = [j for j in range(len(self.c)) if self.can(j)]
        for j in places:
            add(following, j, (jump * h * sum(copy.values()) + anywhere * sum(wait.values())) / len(places))
        return following, stay

    def push(self, t):
        copied = {j: w for j, w in self.next.items() if self.can(j) and self.c[j] == t}
        wait = {j: self.rates.background * w for j, w in self.stay.items()}
        chance = sum(copied.values())
        total = chance + sum(wait.values())
        self.run = self.run + 1 if chance > self.rates.awaited else chance / total
        self.c.append(t)
        self.next, self.stay = self.predict({j + 1: w / total for j, w in copied.items()}, {j: w / total for j, w in wait.items()})

    def suffix(self):
        """(position after the longest earlier match of the text's end, its length)."""
        best, at, n, c = 0, 0, len(self.c), self.c
        for j in range(n - 1):
            e = 0
            while e <= j and c[j - e] == c[n - 1 - e] >= 0 and e < self.rates.cap:
                e += 1
            if e and e >= best:
                best, at = e, j + 1
        return at, best

    def follow(self, j, depth):
        if j < self.s:
            return self.c[j:min(j + depth, self.s)]
        n = len(self.c)
        return [self.c[j + i % max(n - j, 1)] for i in range(depth)] if j < n else []

    def best(self, count):
        """The likeliest pointers: (chance, position), ties in any order."""
        return sorted(((w, j) for j, w in self.next.items() if self.can(j)), reverse=True)[:count]

    def nodes(self, pointers, depth, go_on, trust):
        """Every node that could be drafted from pointers (chance, position), by its path, and its chance."""
        a, b = go_on

        def survival(run, steps):
            out = 1.0
            for i in range(steps):
                out *= (run + i + a) / (run + i + a + b)
            return out

        rows = [(self.follow(j, depth), [w * survival(self.run + 1, i) for i in range(depth)]) for w, j in pointers]
        left = max(0.0, 1 - sum(w for w, _ in pointers))
        at, e = self.suffix()
        rows.append((self.follow(at, depth) if e else [], [left * e / (e + trust) * survival(e, i + 1) for i in range(depth)]))
        found = {}
        for tokens, weights in rows:
            path = ()
            for t, w in zip(tokens, weights, strict=False):
                if t < 0:
                    break
                path += (t,)
                found[path] = found.get(path, 0.0) + w
        return found

    @staticmethod
    def rows(found, costs, worth):
        """How many rows pay best."""
        weights = sorted(found.values(), reverse=True)
        return max(costs, key=lambda c: (sum(weights[:c[0] - 1]) - worth * c[1], -c[0]))[0]
