#pragma once

// The C interface of the Rust library tamis_tokenizers, which wraps the crate `tokenizers` of Hugging Face. Use
// tamis/text/tokenizer.h instead, which gives it types and errors.
//
// All text is bytes with a length, not ended by zero. A call that fails returns no object, or a status other than
// kDone, and sets `message` to one or more lines of text. Panics of the library are caught and reported the same way.
// Several threads may use one tokenizer at once. What a call returns in `tamis_text` and `tamis_ids` must be released.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tamis_tokenizer;

typedef struct {
  char* data;
  size_t size;
} tamis_text;

typedef struct {
  uint32_t* data;
  size_t size;
} tamis_ids;

enum tamis_status { TAMIS_DONE = 0, TAMIS_REFUSED = 1, TAMIS_MISSING = 2 };  // missing: built without the library

/// Reads a tokenizer.json. Truncation and padding are ignored.
enum tamis_status tamis_tokenizer_read(const char* json, size_t bytes, struct tamis_tokenizer** made,
                                       tamis_text* message);
void tamis_tokenizer_free(struct tamis_tokenizer* tokenizer);

/// The largest id plus one; 0 without tokens.
uint64_t tamis_tokenizer_vocab_size(const struct tamis_tokenizer* tokenizer);
/// The id of an added token, or -1 when no added token has this name.
int64_t tamis_tokenizer_added_token(const struct tamis_tokenizer* tokenizer, const char* name, size_t bytes);

/// Special tokens are recognised in the text, and none are added. Bytes that are not UTF-8 become U+FFFD.
enum tamis_status tamis_tokenizer_encode(const struct tamis_tokenizer* tokenizer, const char* text, size_t bytes,
                                         tamis_ids* ids, tamis_text* message);
/// Ids without a token give no text.
enum tamis_status tamis_tokenizer_decode(const struct tamis_tokenizer* tokenizer, const uint32_t* ids, size_t count,
                                         tamis_text* text, tamis_text* message);

/// Returns the next part of the training text in `part` and true, or false at the end. The part must stay valid until
/// the next call; calls come from different threads, one at a time.
typedef bool (*tamis_next_part)(void* context, const char** part, size_t* bytes);

/// A tokenizer.json, and the bytes of words that were cut.
typedef struct {
  tamis_text json;
  uint64_t cut_bytes;
} tamis_trained;

/// Trains a byte-level BPE tokenizer with GPT-2's splitting into words, as the Python package does for a file with the
/// same lines. Words of more than 4,096 bytes are cut into pieces, and lines of more than 1 MiB too, between two words
/// where there is a space. Parts must end with a line. `threads` must be at least 1.
enum tamis_status tamis_tokenizer_train(tamis_next_part next, void* context, uint64_t vocab_size,
                                        uint64_t min_frequency, const char* special_token, size_t special_token_bytes,
                                        size_t threads, tamis_trained* trained, tamis_text* message);

void tamis_text_free(tamis_text text);
void tamis_ids_free(tamis_ids ids);

#ifdef __cplusplus
}
#endif
