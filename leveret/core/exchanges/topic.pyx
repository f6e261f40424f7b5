"""Exchange type `topic`: patterns of words, kept in a trie.

A binding key is words divided by dots; `*` matches one word, `#` any number of words, including
none. A message follows all its paths through the trie at once, one word at a time, so that the cost
depends on the words of its key and on how many patterns match so far, not on the number of
bindings.

Compiled, because publishers whose keys never repeat need it for every message: in Python a walk
among 10,000 patterns full of wildcards took six times as long.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

from leveret.core.routing.router import RoutingLimitError
from leveret.errors import ChannelError

# Every `#` keeps a path alive while others advance: more of them multiply the paths.
WILDCARDS_MAX = 2
# Nodes of the trie that a key may visit, some two milliseconds. No reasonable set of bindings has
# thousands of different patterns that match one key.
WALKED_NODES_MAX = 10_000


cdef class Node:
    """Node of the trie, for all patterns with the words up to here.

    Empty dictionaries are None: a walk may visit tens of thousands of nodes, and objects that it
    need not look at cost no memory access.
    """

    cdef readonly dict children  # by word, without wildcards; or None
    cdef readonly Node one  # after `*`
    cdef readonly Node many  # after `#`
    cdef readonly bint repeats  # this node is after a `#` and takes further words
    cdef readonly dict bindings  # or None
    cdef unsigned long long reached_in  # the last step of any walk that visited it

    def __init__(self, bint repeats=False):
        self.repeats = repeats

    cdef bint is_empty(self):
        return not (self.bindings or self.children or self.one is not None or self.many is not None)

    cdef Node child(self, str word):
        """Return the child for one word of a pattern, or None."""
        if word == "*":
            return self.one
        if word == "#":
            return self.many
        return None if self.children is None else self.children.get(word)

    cdef Node grow(self, str word):
        """Return the child for one word of a pattern, created if missing."""
        cdef Node node = self.child(word)
        if node is None:
            node = Node(word == "#")
            self.put(word, node)
        return node

    cdef put(self, str word, Node node):
        """Set the child for a word; None removes it."""
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
    """Router by patterns, in a trie."""

    cdef readonly dict arguments
    cdef readonly bint key_decides
    cdef readonly bint takes_each_key
    cdef readonly bint chooses
    cdef readonly Node root
    cdef unsigned long long step  # of all walks so far; 64 bits suffice
    cdef readonly Py_ssize_t walked  # nodes visited by the last walk

    def __init__(self, dict arguments):
        self.arguments = arguments
        self.key_decides = True
        self.takes_each_key = True
        self.chooses = False
        self.root = Node()

    def check(self, binding):
        """Raise 406 for a key with more than WILDCARDS_MAX `#`."""
        cdef str key = binding.definition.routing_key
        count = words(key).count("#")
        if count > WILDCARDS_MAX:
            raise ChannelError(
                406,
                f"Topic binding key '{key}' uses {count} '#' wildcards, "
                f"at most {WILDCARDS_MAX} are allowed",
            )

    def add(self, binding):
        """Add a binding."""
        cdef Node node = self.root
        for word in words(binding.definition.routing_key):
            node = node.grow(word)
        if node.bindings is None:
            node.bindings = {}
        node.bindings[binding] = None

    def remove(self, binding):
        """Remove a binding and branches without bindings. Raises KeyError."""
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
        """Return no messages."""
        return ()

    def match(self, str routing_key, message):
        """Return the bindings whose pattern matches, each once.

        Raises RoutingLimitError for a key that visits more than WALKED_NODES_MAX nodes.
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
        """Visit a node, and those after it by `#` for no words."""
        while node is not None and node.reached_in != self.step:
            node.reached_in = self.step
            reached.append(node)
            node = node.many


cdef list words(str key):
    """Split a key; the empty key has no words, while `a..b` has an empty one."""
    return key.split(".") if key else []
