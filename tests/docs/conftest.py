from unit.conftest import tiny_checkpoint, tiny_masked_lm, tiny_tokenizer

__all__ = ["tiny_checkpoint", "tiny_masked_lm", "tiny_tokenizer"]
