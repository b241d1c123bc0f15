"""YAML whose settings are flags of Megatron-LM: of its functional tests, of NeMo, of Primus."""
