#include "text/tokenizer.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "text/ffi_call.h"
#include "text/utf8.h"

namespace splash::text {
namespace {

class HfTokenizer final : public Tokenizer, public FfiTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> open(std::string_view json, const std::string& file) {
    auto tokenizer = std::make_shared<HfTokenizer>();
    Status status = ffi_call(
        file, [&](SplashBytes* error) { return splash_tokenizer_open(ffi_text(json), &tokenizer->handle_, error); });
    if (status) status = tokenizer->read_vocabulary();
    if (!status) {
      status.error().kind = ErrorKind::corrupt;
      status.error().parameter = file;
      return tl::unexpected(std::move(status).error());
    }
    return tokenizer;
  }

  HfTokenizer() = default;
  ~HfTokenizer() override { splash_tokenizer_close(handle_); }
  HfTokenizer(const HfTokenizer&) = delete;
  HfTokenizer& operator=(const HfTokenizer&) = delete;

  std::vector<Token> encode(std::span<const Segment> segments) const override {
    std::vector<SplashSegment> raw;
    raw.reserve(segments.size());
    for (const Segment& segment : segments) raw.push_back({ffi_text(segment.text), segment.control ? 1 : 0});
    FfiBytes ids;
    const Status status = ffi_call("encode", [&](SplashBytes* error) {
      return splash_tokenizer_encode(handle_, raw.data(), raw.size(), ids.out(), error);
    });
    SPLASH_CHECK(status.has_value(), "a byte-level vocabulary can spell every text: {}", status.error().message);
    return ids.array<Token>();
  }

  std::string bytes_of(Token token) const override {
    if (!exists(token)) return {};
    const std::uint32_t begin = token == 0 ? 0 : ends_[static_cast<std::size_t>(token) - 1];
    return bytes_.substr(begin, ends_[static_cast<std::size_t>(token)] - begin);
  }

  std::optional<Token> id_of(std::string_view text) const override {
    const std::int64_t id = splash_tokenizer_id(handle_, ffi_text(text));
    return id < 0 ? std::nullopt : std::optional<Token>(static_cast<Token>(id));
  }

  int size() const override { return static_cast<int>(flags_.size()); }
  bool is_special(Token token) const override { return exists(token) && (flag(token) & SPLASH_TOKEN_SPECIAL) != 0; }
  bool is_added(Token token) const override { return exists(token) && (flag(token) & SPLASH_TOKEN_ADDED) != 0; }
  const SplashTokenizer* ffi_handle() const override { return handle_; }

 private:
  bool exists(Token token) const { return token >= 0 && token < size() && (flag(token) & SPLASH_TOKEN_EXISTS) != 0; }
  std::uint8_t flag(Token token) const { return flags_[static_cast<std::size_t>(token)]; }

  Status read_vocabulary() {
    FfiBytes bytes, ends, flags;
    SPLASH_TRY_STATUS(ffi_call("vocabulary", [&](SplashBytes* error) {
      return splash_tokenizer_vocabulary(handle_, bytes.out(), ends.out(), flags.out(), error);
    }));
    bytes_ = bytes.text();
    ends_ = ends.array<std::uint32_t>();
    flags_ = flags.array<std::uint8_t>();
    return {};
  }

  SplashTokenizer* handle_ = nullptr;
  std::string bytes_;                // of all tokens, one after another
  std::vector<std::uint32_t> ends_;  // of each token in bytes_
  std::vector<std::uint8_t> flags_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& folder) {
  const std::string file = folder + "/tokenizer.json";
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    return fail_parameter(ErrorKind::not_found, file, "{} is missing: the model cannot read or write text", file);
  const std::string json{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return HfTokenizer::open(json, file);
}

std::string Detokenizer::push(Token token) {
  if (tokenizer_->is_special(token)) return {};
  pending_ += tokenizer_->bytes_of(token);
  return take_utf8(pending_, Utf8End::open);
}

std::string Detokenizer::flush() { return take_utf8(pending_, Utf8End::closed); }

}  // namespace splash::text
