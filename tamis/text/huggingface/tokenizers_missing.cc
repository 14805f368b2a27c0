// The C interface in a build without the Rust library (cmake/TamisRust.cmake): every tokenizer is refused as missing.

#ifndef TAMIS_TOKENIZERS

#include "tamis/text/huggingface/tokenizers_c.h"

tamis_status tamis_tokenizer_read(const char*, size_t, tamis_tokenizer**, tamis_text*) {
  return TAMIS_MISSING;
}

void tamis_tokenizer_free(tamis_tokenizer*) {}

uint64_t tamis_tokenizer_vocab_size(const tamis_tokenizer*) {
  return 0;
}

int64_t tamis_tokenizer_added_token(const tamis_tokenizer*, const char*, size_t) {
  return -1;
}

tamis_status tamis_tokenizer_encode(const tamis_tokenizer*, const char*, size_t, tamis_ids*, tamis_text*) {
  return TAMIS_MISSING;
}

tamis_status tamis_tokenizer_decode(const tamis_tokenizer*, const uint32_t*, size_t, tamis_text*, tamis_text*) {
  return TAMIS_MISSING;
}

tamis_status tamis_tokenizer_train(tamis_next_part, void*, uint64_t, uint64_t, const char*, size_t, size_t,
                                   tamis_trained*, tamis_text*) {
  return TAMIS_MISSING;
}

void tamis_text_free(tamis_text) {}

void tamis_ids_free(tamis_ids) {}

#endif
