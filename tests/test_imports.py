"""No file of serving_gym imports itself by way of others; `lint-imports` holds the layers."""

import grimp
import networkx as nx


def test_there_are_no_circles_of_files() -> None:
    graph = grimp.build_graph("serving_gym")
    edges = [
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    ]
    assert len(edges) > len(graph.modules)
    circles = [
        sorted(files) for files in nx.strongly_connected_components(nx.DiGraph(edges)) if len(files) > 1
    ]
    assert not circles
