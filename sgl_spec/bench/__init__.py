"""Workloads, load and reports."""
