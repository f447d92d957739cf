/* C ABI of the Rust crate splash_text_ffi: tokenizers, minijinja and llguidance behind handles, byte buffers and error
 * texts. No panic crosses it. Handles may be used from several threads at once, except SplashMatcher (one at a time). */
#ifndef SPLASH_TEXT_FFI_H_
#define SPLASH_TEXT_FFI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Borrowed bytes, only read during the call. Text is UTF-8; bytes that are not become U+FFFD. */
typedef struct SplashText {
  const uint8_t* data;
  size_t size;
} SplashText;

/* Bytes given out by the crate; give them back with splash_bytes_free. */
typedef struct SplashBytes {
  uint8_t* data;
  size_t size;
  size_t capacity;
} SplashBytes;
void splash_bytes_free(SplashBytes bytes);

/* What a call that may fail returns; *error then holds one line of text. */
enum { SPLASH_OK = 0, SPLASH_INVALID_INPUT = 1, SPLASH_INTERNAL_FAULT = 2 };

typedef struct SplashTokenizer SplashTokenizer;
typedef struct SplashSegment {
  SplashText text;
  int32_t control; /* 1: added tokens are matched */
} SplashSegment;
enum { SPLASH_TOKEN_EXISTS = 1, SPLASH_TOKEN_ADDED = 2, SPLASH_TOKEN_SPECIAL = 4 };

int32_t splash_tokenizer_open(SplashText tokenizer_json, SplashTokenizer** tokenizer, SplashBytes* error);
void splash_tokenizer_close(SplashTokenizer* tokenizer);
/* The raw bytes of all tokens one after another, the end of each (uint32) and its SPLASH_TOKEN_ flags (uint8). */
int32_t splash_tokenizer_vocabulary(const SplashTokenizer* tokenizer, SplashBytes* bytes, SplashBytes* ends,
                                    SplashBytes* flags, SplashBytes* error);
/* The id of exactly these bytes as one token; -1 if there is none. */
int64_t splash_tokenizer_id(const SplashTokenizer* tokenizer, SplashText text);
/* ids: uint32 each. */
int32_t splash_tokenizer_encode(const SplashTokenizer* tokenizer, const SplashSegment* segments, size_t count,
                                SplashBytes* ids, SplashBytes* error);

typedef struct SplashTemplate SplashTemplate;
/* constants_json: an object of strings that count as template text (bos_token, ...). */
int32_t splash_template_open(SplashText source, SplashText constants_json, SplashTemplate** chat_template,
                             SplashBytes* error);
void splash_template_close(SplashTemplate* chat_template);
/* input_json: {"messages": [...], "tools": [...], "variables": {...}}. text: the rendered prompt. cuts: pairs of uint32,
 * the end of a segment in text and 1 if it is template text. reply_start: where the generation prompt begins in text;
 * a cut lies there. Without `cuts` (null) the text alone is rendered, with no provenance. */
int32_t splash_template_render(const SplashTemplate* chat_template, SplashText input_json, SplashBytes* text,
                               SplashBytes* cuts, size_t* reply_start, SplashBytes* error);

typedef struct SplashGrammars SplashGrammars;
typedef struct SplashMatcher SplashMatcher;
enum { SPLASH_GRAMMAR_JSON_SCHEMA = 0, SPLASH_GRAMMAR_LARK = 1 };

int32_t splash_grammars_open(const SplashTokenizer* tokenizer, const uint32_t* stop_tokens, size_t stop_token_count,
                             uint32_t vocabulary, SplashGrammars** grammars, SplashBytes* error);
void splash_grammars_close(SplashGrammars* grammars);
/* leading_space: 1 allows a little white space before the grammar. */
int32_t splash_matcher_open(const SplashGrammars* grammars, int32_t kind, SplashText grammar, int32_t leading_space,
                            SplashMatcher** matcher, SplashBytes* error);
void splash_matcher_close(SplashMatcher* matcher);
/* Bit t of mask word t / 32: token t may come next. A finished grammar allows the stop tokens only. */
int32_t splash_matcher_mask(SplashMatcher* matcher, uint32_t* mask, size_t words, SplashBytes* error);
int32_t splash_matcher_consume(SplashMatcher* matcher, uint32_t token, SplashBytes* error);
int32_t splash_matcher_rollback(SplashMatcher* matcher, size_t tokens, SplashBytes* error);

#ifdef __cplusplus
}
#endif

#endif /* SPLASH_TEXT_FFI_H_ */
