"""The paper's analysis of trained models, as numbers, tables, figures and the page of an export."""
