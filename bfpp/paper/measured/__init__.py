"""The paper's figures from the measurements of a study, beside its predictions."""
