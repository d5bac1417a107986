"""Proof: what is claimed is measured here, and no figure leaves without its correctness gates.

workload -> load -> answers checked -> gates -> result file -> tables, page, comparison
"""
