"""What a model costs and what its cores do: benchmark, demo, figures."""
