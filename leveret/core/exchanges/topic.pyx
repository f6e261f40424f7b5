"""Exchange type `topic`: patterns of words, kept as a trie.

A binding key is words divided by dots; `*` stands for one word, `#` for any number of words, none
included. A message walks all its paths through the trie at once, one word at a time, so that the
cost depends on the words of its key and on how many patterns agree with it so far, not on how many
bindings there are.

Compiled, because publishers whose keys never repeat come here for every message: in Python a walk
among 10,000 patterns full of wildcards took six times as long.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

from leveret.core.exchanges.router import RoutingLimitError
from leveret.errors import ChannelError

# Every `#` lets a walk stay where it is while others go on: more of them multiply the paths.
WILDCARDS_MAX = 2
# Places of the trie that a key may come by, some two milliseconds. Thousands of patterns that differ
# and fit one key all the same are nobody's who knows of them.
WALKED_NODES_MAX = 10_000


cdef class Node:
    """What the words up to here have in common.

    Empty dictionaries are left out: a walk may pass tens of thousands of nodes, and each thing that
    it need not look at is one that need not come from memory.
    """

    cdef readonly dict children  # by their word, without wildcards; or None
    cdef readonly Node one  # behind `*`
    cdef readonly Node many  # behind `#`
    cdef readonly bint repeats  # this node is behind a `#` and takes further words
    cdef readonly dict bindings  # or None
    cdef unsigned long long reached_in  # the last step of any walk that came here

    def __init__(self, bint repeats=False):
        self.repeats = repeats

    cdef bint is_empty(self):
        return not (self.bindings or self.children or self.one is not None or self.many is not None)

    cdef Node child(self, str word):
        """What lies behind one word of a pattern, or None."""
        if word == "*":
            return self.one
        if word == "#":
            return self.many
        return None if self.children is None else self.children.get(word)

    cdef Node grow(self, str word):
        """What lies behind one word of a pattern, made if need be."""
        cdef Node node = self.child(word)
        if node is None:
            node = Node(word == "#")
            self.put(word, node)
        return node

    cdef put(self, str word, Node node):
        """Let `node` lie behind a word; None cuts off what does."""
        if word == "*":
            self.one = node
        elif word == "#":
            self.many = node
        elif node is None:
            del self.children[word]
            if not self.children:
                self.children = None
        else:
            if self.children is None:
                self.children = {}
            self.children[word] = node


cdef class TopicRouter:
    """Bindings by the words of their keys."""

    cdef readonly dict arguments
    cdef readonly bint key_decides
    cdef readonly bint takes_each_key
    cdef readonly bint chooses
    cdef readonly Node root
    cdef unsigned long long step  # of all walks so far; 64 bits last
    cdef readonly Py_ssize_t walked  # places that the last walk came by

    def __init__(self, dict arguments):
        self.arguments = arguments
        self.key_decides = True
        self.takes_each_key = True
        self.chooses = False
        self.root = Node()

    def check(self, binding):
        """Refuse (406) a key with more `#` than a walk should follow."""
        cdef str key = binding.definition.routing_key
        count = words(key).count("#")
        if count > WILDCARDS_MAX:
            raise ChannelError(
                406,
                f"Topic binding key '{key}' uses {count} '#' wildcards, "
                f"at most {WILDCARDS_MAX} are allowed",
            )

    def add(self, binding):
        """Take a binding in."""
        cdef Node node = self.root
        for word in words(binding.definition.routing_key):
            node = node.grow(word)
        if node.bindings is None:
            node.bindings = {}
        node.bindings[binding] = None

    def remove(self, binding):
        """Let a binding go, and the branches that led to nothing else. Raises KeyError."""
        cdef Node node = self.root
        cdef list path = []
        for word in words(binding.definition.routing_key):
            path.append((node, word))
            node = node.child(word)
            if node is None:
                raise KeyError(binding)
        if node.bindings is None:
            raise KeyError(binding)
        del node.bindings[binding]
        if not node.bindings:
            node.bindings = None
        while path and node.is_empty():
            node, word = path.pop()
            node.put(word, None)

    def history(self):
        """Nothing is kept."""
        return ()

    def match(self, str routing_key, message):
        """List the bindings whose pattern fits; each once, however many ways it fits.

        Raises RoutingLimitError for a key that comes by more than WALKED_NODES_MAX places.
        """
        cdef Node node
        cdef PyObject* found_child
        cdef Py_ssize_t walked_max = WALKED_NODES_MAX
        cdef list following, found = [], reached = []
        cdef str word
        self.step += 1
        self.walked = 0
        self.reach(self.root, reached)
        for word in words(routing_key):
            self.step += 1
            following = []
            for node in reached:
                if node.repeats:
                    self.reach(node, following)
                if node.children is not None:
                    found_child = PyDict_GetItemWithError(node.children, word)
                    if found_child != NULL:
                        self.reach(<Node>found_child, following)
                if node.one is not None:
                    self.reach(node.one, following)
            reached = following
            self.walked += len(reached)
            if self.walked > walked_max:
                raise RoutingLimitError
        for node in reached:
            if node.bindings is not None:
                found.extend(node.bindings)
        return found

    cdef reach(self, Node node, list reached):
        """Note a node, and those behind it that need no word: a `#` may stand for nothing."""
        while node is not None and node.reached_in != self.step:
            node.reached_in = self.step
            reached.append(node)
            node = node.many


cdef list words(str key):
    """Split a key; the empty key has no words, while `a..b` has an empty one."""
    return key.split(".") if key else []
