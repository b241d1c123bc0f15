"""See, predict, check, compare and run the schedules of pipeline-parallel training.

The names that a user imports; `__init__.pyi` lists them with their homes. Each is
loaded when it is first used: so `import bfpp` is quick, and the layers below,
whose modules are imported through this package, depend on nothing above them.

>>> import bfpp
>>> graph = bfpp.build_graph("breadth-first", bfpp.Layout(4, 8, loops=4))
>>> timeline = bfpp.simulate(graph, bfpp.AbstractCosts())
>>> bfpp.bubble(timeline)
0.09375
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
