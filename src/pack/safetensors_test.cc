// The reader trusts nothing: each mutation of a good file is an error that names the file and, where there is one,
// the tensor.
#include "pack/safetensors.h"

#include "pack/pack_testing.h"

namespace splash::pack {
namespace {

std::string with_header(std::string_view header, std::size_t data_bytes, std::int64_t claimed_header_bytes = -1) {
  const std::uint64_t length =
      claimed_header_bytes < 0 ? header.size() : static_cast<std::uint64_t>(claimed_header_bytes);
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + std::string(header) + std::string(data_bytes, 'x');
}

Result<std::vector<TensorView>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "a.safetensors");
}

constexpr const char* good_header =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},"empty":{"dtype":"U8","shape":[0,7],"data_offsets":[16,16]}})";

TEST(Safetensors, ReadsWhatIsRight) {
  const std::string file = with_header(good_header, 16);
  const auto tensors = parse(file);
  ASSERT_OK(tensors);
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[0].data.size(), 12u);
  EXPECT_EQ((*tensors)[1].elements(), 1);
  EXPECT_EQ((*tensors)[2].elements(), 0);
}

struct HeaderMutation {
  const char* what;
  const char* from;
  const char* to;
  std::vector<std::string> named;
};

TEST(Safetensors, RefusesEveryMutationOfTheHeader) {
  const std::vector<HeaderMutation> mutations{
      {"unknown dtype", "\"BF16\"", "\"BF17\"", {"a", "BF17"}},
      {"dtype of another size", "\"BF16\"", "\"F32\"", {"a", "24"}},
      {"dtype is a number", "\"BF16\"", "16", {"a.dtype"}},
      {"no dtype", "\"dtype\":\"BF16\",", "", {"a.dtype", "missing"}},
      {"no shape", "\"shape\":[2,3],", "", {"a.shape", "missing"}},
      {"no offsets", ",\"data_offsets\":[0,12]", "", {"a.data_offsets", "missing"}},
      {"shape of another size", "[2,3]", "[2,4]", {"a", "need 16"}},
      {"negative extent", "[2,3]", "[-2,-3]", {"a.shape[0]"}},
      {"fractional extent", "[2,3]", "[2.5,3]", {"a.shape[0]"}},
      {"extent as text", "[2,3]", "[\"2\",3]", {"a.shape[0]"}},
      {"extent beyond 64 bits", "[2,3]", "[18446744073709551617,3]", {"a.shape[0]"}},
      {"product overflows", "[2,3]", "[1099511627776,1099511627776]", {"a.shape", "overflows"}},
      {"nine dimensions", "[2,3]", "[1,1,1,1,1,1,1,2,3]", {"a.shape"}},
      {"shape is an object", "[2,3]", "{}", {"a.shape"}},
      {"end past the file", "[0,12]", "[0,1200]", {"a.data_offsets", "truncated"}},
      {"end before begin", "[0,12]", "[12,0]", {"a.data_offsets"}},
      {"negative begin", "[0,12]", "[-4,8]", {"a.data_offsets[0]"}},
      {"huge offsets", "[0,12]", "[4611686018427387904,4611686018427387916]", {"a.data_offsets[0]"}},
      {"three offsets", "[0,12]", "[0,4,12]", {"a.data_offsets"}},
      {"overlap", "\"data_offsets\":[12,16]", "\"data_offsets\":[8,12]", {"b", "overlaps"}},
      {"gap",
       "\"shape\":[2,3],\"data_offsets\":[0,12]",
       "\"shape\":[2,2],\"data_offsets\":[0,8]",
       {"b", "does not follow"}},
      {"bytes after the last",
       "\"F32\",\"shape\":[],\"data_offsets\":[12,16]},\"empty\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":["
       "16,16]}",
       "\"BF16\",\"shape\":[],\"data_offsets\":[12,14]}",
       {"2 bytes after"}},
      {"name twice", "\"b\":", "\"a\":", {"\"a\" appears twice"}},
      {"key twice in a tensor",
       "\"dtype\":\"F32\",",
       "\"dtype\":\"F32\",\"dtype\":\"F32\",",
       {"\"dtype\" appears twice"}},
      {"tensor is a list", "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}", "[]", {"b"}},
      {"not JSON", "\"b\":", "b:", {"JSON"}},
      {"trailing comma", "\"shape\":[2,3]", "\"shape\":[2,3,]", {"JSON"}},
      {"not closed", "[16,16]}}", "[16,16]}", {"JSON"}}};
  for (const HeaderMutation& mutation : mutations) {
    SCOPED_TRACE(mutation.what);
    std::vector<std::string> named = mutation.named;
    named.emplace_back("a.safetensors");
    expect_error(parse(with_header(replaced(good_header, mutation.from, mutation.to), 16)), named);
  }
}

TEST(Safetensors, RefusesADamagedFrame) {
  expect_error(parse(""), {"a.safetensors", "0 bytes"});
  expect_error(parse("1234567"), {"7 bytes"});
  expect_error(parse(with_header(good_header, 16, std::int64_t{1} << 62)), {"header claims"});
  expect_error(parse(with_header(good_header, 16, 100'000'001)), {"header claims"});
  expect_error(parse(with_header(good_header, 16, static_cast<std::int64_t>(std::strlen(good_header)) + 17)), {"header claims"});
  expect_error(parse(std::string(8, '\xff') + good_header), {"header claims"});
  expect_error(parse(with_header("", 0)), {"JSON"});
  expect_error(parse(with_header("[]", 0)), {"object"});
  expect_error(parse(with_header(std::string(100'000, '['), 0)), {"JSON"});
  std::string deep = "{\"a\":";
  for (int i = 0; i < 50'000; ++i) deep += "{\"a\":";
  expect_error(parse(with_header(deep, 0)), {"JSON"});
  EXPECT_OK(parse(with_header("{}", 0)));
}

TEST(Safetensors, RefusesEveryTruncationWithoutTouchingBytesOutside) {
  const std::string file = with_header(good_header, 16);
  for (std::size_t size = 0; size < file.size(); ++size) {
    // A copy of exactly this size, so that the address sanitizer sees a read past its end.
    const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(parse_safetensors(std::as_bytes(std::span(cut)), "a.safetensors")) << size;
  }
}

TEST(Safetensors, SurvivesEveryChangedByteOfTheHeader) {
  const std::string file = with_header(good_header, 16);
  for (std::size_t place = 0; place + 16 < file.size(); ++place) {
    for (const int value : {0, int{'0'}, int{'9'}, int{'"'}, int{'{'}, int{'}'}, int{'['}, int{']'}, int{','}, int{':'},
                            int{'-'}, 0xff}) {
      std::string changed = file;
      changed[place] = static_cast<char>(value);
      const auto tensors = parse(changed);
      if (!tensors) continue;
      for (const TensorView& tensor : *tensors) {
        EXPECT_GE(reinterpret_cast<const char*>(tensor.data.data()), changed.data());
        EXPECT_LE(reinterpret_cast<const char*>(tensor.data.data() + tensor.data.size()),
                  changed.data() + changed.size());
      }
    }
  }
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  write_tensors(folder / "b.safetensors",
                {{"quote\"d", "F32", {2, 1}, "12345678"}, {"ids", "I32", {0}, ""}, {"x", "I32", {1}, "abcd"}});
  auto tensors = read_tensors(folder / "b.safetensors");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(find_tensor(tensors, "quote\"d")->data, "12345678");
  EXPECT_EQ(find_tensor(tensors, "x")->data, "abcd");
  EXPECT_EQ(find_tensor(tensors, "ids")->shape, std::vector<std::int64_t>{0});
  expect_error(SafetensorsFile::open(folder / "none.safetensors"), {"none.safetensors"});
  expect_error(SafetensorsFile::open(folder.path()), {folder.path().string()});
}

}  // namespace
}  // namespace splash::pack
