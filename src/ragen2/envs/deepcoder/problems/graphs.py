"""Problems about graphs: nodes 0 to n - 1 and lists of edges."""

from __future__ import annotations

import itertools

from ragen2.envs.deepcoder.problems.draws import edges as draw_edges
from ragen2.envs.deepcoder.problems.draws import integer, tree
from ragen2.envs.deepcoder.problems.family import Family

_NODES = (4, 5, 6, 8, 10, 15, 40)
_FAR = 10**9


def _reachable(n: int, edges: list[list[int]]) -> list[set[int]]:
    """Who can be reached from whom, by growing sets until nothing changes."""
    found = [{node} for node in range(n)]
    changed = True
    while changed:
        changed = False
        for a, b, *_ in edges:
            both = found[a] | found[b]
            if both != found[a] or both != found[b]:
                found[a], found[b], changed = both, both, True
    return found


def _all_distances(n: int, edges: list[list[int]], directed: bool) -> list[list[int]]:
    """Floyd and Warshall."""
    table = [[0 if i == j else _FAR for j in range(n)] for i in range(n)]
    for a, b, *weight in edges:
        cost = weight[0] if weight else 1
        table[a][b] = min(table[a][b], cost)
        if not directed:
            table[b][a] = min(table[b][a], cost)
    for k, i, j in itertools.product(range(n), repeat=3):
        table[i][j] = min(table[i][j], table[i][k] + table[k][j])
    return table


def _first_order(n: int, edges: list[list[int]]) -> list[int]:
    """Take the least node without an open predecessor, by looking at all of them each time."""
    order: list[int] = []
    while len(order) < n:
        blocked = {b for a, b in edges if a not in order}
        free = [node for node in range(n) if node not in order and node not in blocked]
        if not free:
            return []
        order.append(free[0])
    return order


def _is_bipartite(n: int, edges: list[list[int]]) -> bool:
    """No node reaches its own other side in the double cover."""
    double = [[a, b + n] for a, b in edges] + [[a + n, b] for a, b in edges]
    reach = _reachable(2 * n, double)
    return all(node + n not in reach[node] for node in range(n))


def _tree_weight(n: int, edges: list[list[int]]) -> int:
    """Prim: grow one tree by the cheapest edge that leaves it."""
    inside, total = {0}, 0
    while len(inside) < n:
        weight, node = min(
            (w, b if a in inside else a) for a, b, w in edges if (a in inside) != (b in inside)
        )
        inside.add(node)
        total += weight
    return total


def _weighted(rng_edges: list[list[int]], weights: list[int]) -> list[list[int]]:
    return [[a, b, w] for (a, b), w in zip(rng_edges, weights, strict=True)]


FAMILIES = (
    Family(
        name="components",
        level=3,
        takes=(("n", "int"), ("edges", "rows")),
        gives="int",
        wanted="$what of the undirected graph with nodes 0 to n - 1",
        variants=(
            {"what": "the number of connected parts", "result": "len(sizes)"},
            {"what": "the number of nodes in the largest connected part", "result": "max(sizes)"},
        ),
        solution="""
def components(n, edges):
    parent = list(range(n))

    def find(x):
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a, b in edges:
        parent[find(a)] = find(b)
    sizes = {}
    for x in range(n):
        sizes[find(x)] = sizes.get(find(x), 0) + 1
    sizes = list(sizes.values())
    return $result
""",
        answer=lambda n, edges, what, result: (
            len(set(map(frozenset, _reachable(n, edges))))
            if "number of connected" in what
            else max(map(len, _reachable(n, edges)))
        ),
        draw=lambda rng, size: (size, draw_edges(rng, size, size * 2 // 3)),
        edges=((1, []), (3, []), (2, [[0, 1]]), (4, [[0, 1], [1, 0], [2, 3]]), (3, [[2, 2]])),
        idea="join the ends of every edge in a union-find structure",
        sizes=(4, 5, 6, 8, 10, 15, 60),
    ),
    Family(
        name="cheapest_way",
        level=4,
        takes=(("n", "int"), ("edges", "rows")),
        gives="int",
        wanted="the least total weight of a way from node 0 to node n - 1 along edges a b "
        "weight, or -1",
        note="Edges lead $how; weights are not negative.",
        variants=(
            {"how": "from a to b only", "directed": 1},
            {"how": "in both directions", "directed": 0},
        ),
        solution="""
import heapq

def cheapest_way(n, edges):
    onward = [[] for _ in range(n)]
    for a, b, w in edges:
        onward[a].append((b, w))
        if not $directed:
            onward[b].append((a, w))
    done = set()
    queue = [(0, 0)]
    while queue:
        cost, node = heapq.heappop(queue)
        if node == n - 1:
            return cost
        if node not in done:
            done.add(node)
            for after, w in onward[node]:
                heapq.heappush(queue, (cost + w, after))
    return -1
""",
        answer=lambda n, edges, how, directed: (
            d if (d := _all_distances(n, edges, bool(directed))[0][n - 1]) < _FAR else -1
        ),
        draw=lambda rng, size: (
            size,
            _weighted(
                e := draw_edges(rng, size, 2 * size), [integer(rng, 0, 20) for _ in range(len(e))]
            ),
        ),
        edges=(
            (1, []),
            (2, []),
            (2, [[1, 0, 5]]),
            (3, [[0, 2, 9], [0, 1, 2], [1, 2, 3]]),
            (2, [[0, 1, 4], [0, 1, 2]]),
        ),
        idea="Dijkstra: settle the nearest open node with a heap",
        sizes=_NODES,
    ),
    Family(
        name="first_order",
        level=4,
        takes=(("n", "int"), ("edges", "rows")),
        gives="ints",
        wanted="the smallest order of the nodes 0 to n - 1 (compared number by number) in which "
        "a comes before b for every edge a b",
        note="If there is none, the answer is an empty list.",
        solution="""
import heapq

def first_order(n, edges):
    waits = [0] * n
    onward = [[] for _ in range(n)]
    for a, b in edges:
        onward[a].append(b)
        waits[b] += 1
    free = [x for x in range(n) if waits[x] == 0]
    order = []
    while free:
        node = heapq.heappop(free)
        order.append(node)
        for after in onward[node]:
            waits[after] -= 1
            if waits[after] == 0:
                heapq.heappush(free, after)
    return order if len(order) == n else []
""",
        answer=_first_order,
        draw=lambda rng, size: (
            size,
            [
                [a, b] if (3 * a + 1) % 7 < (3 * b + 1) % 7 or integer(rng, 0, 30) == 0 else [b, a]
                for a, b in draw_edges(rng, size, size)
                if a % 7 != b % 7
            ],
        ),
        edges=((1, []), (3, []), (2, [[1, 0]]), (2, [[0, 1], [1, 0]]), (3, [[2, 0], [2, 0]])),
        idea="take the smallest node whose predecessors are all taken, with a heap",
        sizes=_NODES,
    ),
    Family(
        name="is_bipartite",
        level=3,
        takes=(("n", "int"), ("edges", "rows")),
        gives="bool",
        wanted="True if the nodes 0 to n - 1 can be painted in two colours so that every edge "
        "has two, else False",
        solution="""
def is_bipartite(n, edges):
    near = [[] for _ in range(n)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    colour = {}
    for start in range(n):
        if start in colour:
            continue
        colour[start] = 0
        todo = [start]
        while todo:
            node = todo.pop()
            for other in near[node]:
                if other not in colour:
                    colour[other] = 1 - colour[node]
                    todo.append(other)
                elif colour[other] == colour[node]:
                    return False
    return True
""",
        answer=_is_bipartite,
        draw=lambda rng, size: (
            size,
            [
                [a, b]
                for a, b in draw_edges(rng, size, size)
                if (a + b) % 2 or integer(rng, 0, size) == 0
            ],
        ),
        edges=((1, []), (2, [[0, 1]]), (3, [[0, 1], [1, 2], [2, 0]]), (1, [[0, 0]]), (4, [])),
        idea="paint along the edges and look for a clash",
        sizes=(4, 5, 6, 8, 10, 15, 30),
    ),
    Family(
        name="tree_weight",
        level=4,
        takes=(("n", "int"), ("edges", "rows")),
        gives="int",
        wanted="the least total weight of edges a b weight that connect all nodes 0 to n - 1",
        note="The graph is connected.",
        solution="""
def tree_weight(n, edges):
    parent = list(range(n))

    def find(x):
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    total = 0
    for w, a, b in sorted((w, a, b) for a, b, w in edges):
        if find(a) != find(b):
            parent[find(a)] = find(b)
            total += w
    return total
""",
        answer=_tree_weight,
        draw=lambda rng, size: (
            size,
            _weighted(
                e := tree(rng, size) + draw_edges(rng, size, size),
                [integer(rng, 0, 30) for _ in range(len(e))],
            ),
        ),
        edges=(
            (1, []),
            (2, [[0, 1, 7]]),
            (2, [[0, 1, 7], [1, 0, 3]]),
            (3, [[0, 1, 1], [1, 2, 1], [0, 2, 1]]),
            (3, [[0, 1, -2], [1, 2, 5], [0, 2, 4]]),
        ),
        idea="Kruskal: take edges from the lightest on unless they close a cycle",
        sizes=(3, 4, 5, 8, 12, 20, 60),
    ),
    Family(
        name="tree_diameter",
        level=4,
        takes=(("n", "int"), ("edges", "rows")),
        gives="int",
        wanted="the number of edges on the longest way between two nodes of the tree with nodes "
        "0 to n - 1",
        solution="""
def tree_diameter(n, edges):
    near = [[] for _ in range(n)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)

    def farthest(start):
        distance = {start: 0}
        order = [start]
        for node in order:
            for other in near[node]:
                if other not in distance:
                    distance[other] = distance[node] + 1
                    order.append(other)
        return order[-1], distance[order[-1]]

    return farthest(farthest(0)[0])[1]
""",
        answer=lambda n, edges: max(map(max, _all_distances(n, edges, False))),
        draw=lambda rng, size: (size, tree(rng, size)),
        edges=(
            (1, []),
            (2, [[0, 1]]),
            (4, [[0, 1], [0, 2], [0, 3]]),
            (4, [[3, 2], [2, 1], [1, 0]]),
            (5, [[1, 0], [1, 2], [2, 3], [2, 4]]),
        ),
        idea="search twice: the farthest node from anywhere is one end of a longest way",
        sizes=(3, 4, 6, 8, 12, 20, 60),
    ),
)
