// Broken inputs from good ones: a seeded mutator. The same seed gives the same inputs on every machine, so a failure is
// reproduced by its printed number alone.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace splash::fuzz {

class Mutator {
 public:
  // `words`: what this format is made of (keys, markup, edge values); spliced in whole, since random bytes rarely spell one.
  Mutator(std::vector<std::string> seeds, std::vector<std::string> words, std::uint32_t seed)
      : seeds_(std::move(seeds)), words_(std::move(words)), random_(seed) {}

  std::string next() {
    std::string text = seeds_[below(seeds_.size())];
    for (std::size_t left = 1 + below(below(8) == 0 ? 24 : 4); left > 0; --left) mutate(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void mutate(std::string& text) {
    const std::size_t at = below(text.size() + 1), length = below(1 + std::min<std::size_t>(text.size() - at, 40));
    switch (below(9)) {
      case 0: text.resize(at); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(at, length)); break;
      case 3: text.insert(at, words_[below(words_.size())]); break;
      case 4: text.replace(at, length, words_[below(words_.size())]); break;
      case 5: if (at < text.size()) text[at] = static_cast<char>(random_()); break;
      case 6: if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
      case 7: text.insert(at, 1 + below(64), static_cast<char>(random_())); break;
      case 8: {  // the head of one input, the tail of another
        const std::string& other = seeds_[below(seeds_.size())];
        text = text.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
    }
  }

  std::vector<std::string> seeds_, words_;
  std::mt19937 random_;
};

inline const std::vector<std::string>& json_words() {
  static const std::vector<std::string> words = {
      "null", "true", "false", "0", "-1", "1e999", "-0.0", "18446744073709551616", "9223372036854775807", "\"\"", "[]", "{}",
      "[[[[[[[[", "{\"a\":", "\"\\ud800\"", "\"\\u0000\"", "\xc3\x28", "\xed\xa0\x80", "\xf4\x90\x80\x80", ",", ":", "\"", "\\",
      "]", "}", "1.5", "\"../../x\"", "\"/etc/passwd\"", "4294967296", "2147483648", "-9223372036854775808"};
  return words;
}

// `words` and those of JSON.
inline std::vector<std::string> with_json_words(std::vector<std::string> words) {
  words.insert(words.end(), json_words().begin(), json_words().end());
  return words;
}

}  // namespace splash::fuzz
