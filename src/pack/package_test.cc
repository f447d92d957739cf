// A pack that was tampered with, cut short or never finished does not open, and the error says where.
#include "pack/package.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>

#include "pack/manifest.h"
#include "pack/pack_testing.h"
#include "pack/step_bytes.h"
#include "pack/synth.h"
#include "pack/write_pack.h"

namespace splash::pack {
namespace {

namespace fs = std::filesystem;

// One pack of the fixtures for the whole suite, made by its first test; tests that change it take a copy.
class PackTest : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path target = fixture("dense"), draft = fixture("dense-draft");
    if (folder_ != nullptr) return;
    folder_ = new TemporaryFolder;
    ASSERT_OK(pack_folder(target, pack(), {.draft = draft}));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path pack() { return *folder_ / "pack"; }
  static std::string manifest() { return read_file(pack() / manifest_name); }

  fs::path copy() {
    const fs::path to = own_ / ("copy-" + std::to_string(copies_++));
    fs::copy(pack(), to, fs::copy_options::recursive);
    return to;
  }

  TemporaryFolder own_;
  int copies_ = 0;
  static TemporaryFolder* folder_;
};
TemporaryFolder* PackTest::folder_ = nullptr;

TEST_F(PackTest, ManifestReadsBackEqual) {
  const auto parsed = parse_manifest(manifest(), "manifest.json");
  ASSERT_OK(parsed);
  EXPECT_EQ(manifest_text(*parsed), manifest());
  for (const SourceFile& file : parsed->target_source.files) EXPECT_EQ(file.sha256.size(), 64u) << file.path;
}

struct Mutation {
  const char* from;
  const char* to;
  std::vector<std::string> named;
};

TEST_F(PackTest, EveryMutationOfTheManifestIsRefusedByName) {
  const std::vector<Mutation> mutations{
      {"\"schema\": 1", "\"schema\": 2", {"schema 2"}},
      {"\"schema\": 1", "\"schema\": \"1\"", {"schema"}},
      {"\"schema\": 1,", "", {"schema", "missing"}},
      {"\"name\": \"dense\",", "", {"name", "missing"}},
      {"\"hidden_size\":256", "\"hidden_size\":0", {"target", "hidden_size"}},
      {"\"hidden_size\":256", "\"hidden_size\":1000000000", {"target", "hidden_size"}},
      {"\"hidden_size\":256", "\"hidden_size\":512", {"hidden_size"}},
      {"\"intermediate_size\":512", "\"intermediate_size\":513", {"mlp.gate_proj", "[513, 256]"}},
      {"\"value_heads\":6", "\"value_heads\":5", {"value_heads"}},
      {"\"tied_head\":false", "\"tied_head\":true", {"lm_head", "no such section"}},
      {"\"layers\":[\"gdn\",", "\"layers\":[\"mamba\",", {"mamba"}},
      {"\"layers\":[\"gdn\",", "\"layers\":[", {"layers"}},
      {"\"layers\":[\"gdn\",", "\"layers\":[\"gdn\",\"gdn\",", {"layers."}},
      {"\"rope_theta\":1E7", "\"rope_theta\":0", {"rope_theta"}},
      {"\"taps\":[0,2]", "\"taps\":[0,4]", {"taps layer 4"}},
      {"\"taps\":[0,2]", "\"taps\":[2,0]", {"draft", "tap"}},
      {"\"mask_token\":1023", "\"mask_token\":1024", {"mask_token"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"../head.bin\"", {"../head.bin", "leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target/../../head.bin\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"/etc/passwd\"", {"/etc/passwd", "leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target/./head.bin\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target//head.bin\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target\\\\head.bin\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target/head\\u0000.bin\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"\"", {"leaves"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target/model.bin\"", {"target/model.bin", "twice"}},
      {"\"path\":\"target/head.bin\"", "\"path\":\"target/heat.bin\"", {"lm_head", "target/head.bin", "not listed"}},
      {"\"path\":\"target/head.bin\",\"size\":", "\"path\":\"target/head.bin\",\"size\":-", {"size"}},
      {"\"path\":\"target/head.bin\",\"size\":1", "\"path\":\"target/head.bin\",\"size\":", {"lm_head", "outside"}},
      {"\"sha256\":\"", "\"sha256\":\"X", {"SHA-256"}},
      {"\"path\":\"draft/model.bin\"", "\"path\":\"draft/../target/model.bin\"", {"leaves"}},
      {"\"component\":\"target\"", "\"component\":\"vision\"", {"vision"}},
      {"\"component\":\"target\",\"name\":\"lm_head\"",
       "\"component\":\"draft\",\"name\":\"lm_head\"",
       {"lm_head", "no such section"}},
      {"\"name\":\"lm_head\",\"kind\":\"q4\"", "\"name\":\"lm_head\",\"kind\":\"q5\"", {"lm_head", "q5"}},
      {"\"name\":\"lm_head\",\"kind\":\"q4\"", "\"name\":\"lm_head\",\"kind\":\"vector\"", {"lm_head", "vector"}},
      {"\"name\":\"lm_head\",\"kind\":\"q4\"", "\"name\":\"lm_head\",\"kind\":\"bf16\"", {"lm_head", "bytes"}},
      {"\"name\":\"lm_head\",\"kind\":\"q4\",\"rows\":1024",
       "\"name\":\"lm_head\",\"kind\":\"q4\",\"rows\":1023",
       {"lm_head", "[1023, 256]"}},
      {"\"name\":\"lm_head\",\"kind\":\"q4\",\"rows\":1024",
       "\"name\":\"lm_head\",\"kind\":\"q4\",\"rows\":4294968320",
       {"rows"}},
      {"\"name\":\"norm\"", "\"name\":\"gnome\"", {"gnome", "no such section"}},
      {"\"file\":\"target/head.bin\",\"offset\":0",
       "\"file\":\"target/head.bin\",\"offset\":64",
       {"lm_head", "multiple"}},
      {"\"file\":\"target/head.bin\",\"offset\":0",
       "\"file\":\"target/head.bin\",\"offset\":16384",
       {"lm_head", "outside"}},
      {"\"file\":\"target/head.bin\",\"offset\":0",
       "\"file\":\"target/head.bin\",\"offset\":4611686018427387904",
       {"lm_head", "outside"}},
      {"\"file\":\"target/head.bin\",\"offset\":0", "\"file\":\"target/head.bin\",\"offset\":-16384", {"offset"}},
      {"\"file\":\"target/head.bin\",\"offset\":0",
       "\"file\":\"target/embedding.bin\",\"offset\":0",
       {"lm_head", "embed_tokens", "overlap"}},
      {"\"name\":\"layers.1.input_layernorm\"",
       "\"name\":\"layers.0.input_layernorm\"",
       {"layers.0.input_layernorm", "twice"}},
      {"\"sections\": [", "\"sections\": [[],", {"sections[0]"}},
      {"\"files\": [", "\"files\": {}, \"other\": [", {"files"}},
      {"\"files\": [", "\"files\": [{\"path\":\"x\"},", {"files[0].size"}}};
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(mutation.to);
    std::vector<std::string> named = mutation.named;
    named.emplace_back("manifest.json");
    expect_error(parse_manifest(replaced(manifest(), mutation.from, mutation.to), "manifest.json"), named);
  }
}

TEST_F(PackTest, ASectionLeftOutIsNamed) {
  std::string text = manifest();
  const std::size_t begin = text.find("{\"component\":\"target\",\"name\":\"layers.2.mlp.up_proj\"");
  text.erase(begin, text.find('\n', begin) - begin);
  expect_error(parse_manifest(text, "manifest.json"), {"manifest.json", "layers.2.mlp.up_proj", "missing"});
}

TEST_F(PackTest, EveryTruncationOfTheManifestIsRefused) {
  const std::string text = manifest();
  for (std::size_t size = 0; size + 2 < text.size(); size += 97) {
    EXPECT_FALSE(parse_manifest(std::string_view(text).substr(0, size), "manifest.json")) << size;
  }
}

TEST_F(PackTest, FilesThatDoNotMatchAreNamed) {
  struct Case {
    const char* what;
    std::function<void(const fs::path&)> apply;
    std::vector<std::string> named;
  };
  const std::vector<Case> cases{
      {"missing", [](const fs::path& p) { fs::remove(p / "target/layer-002.bin"); }, {"target/layer-002.bin"}},
      {"truncated",
       [](const fs::path& p) { fs::resize_file(p / "target/head.bin", 16384); },
       {"target/head.bin", "truncated"}},
      {"longer",
       [](const fs::path& p) { fs::resize_file(p / "draft/model.bin", 1 << 24); },
       {"draft/model.bin", "damaged"}},
      {"empty",
       [](const fs::path& p) { fs::resize_file(p / "target/model.bin", 0); },
       {"target/model.bin", "truncated"}},
      {"a folder",
       [](const fs::path& p) {
         fs::remove(p / "target/model.bin");
         fs::create_directory(p / "target/model.bin");
       },
       {"target/model.bin", "not a plain file"}},
      {"link out of the pack",
       [](const fs::path& p) {
         fs::rename(p / "target/model.bin", p.parent_path() / "outside.bin");
         fs::create_symlink("../../outside.bin", p / "target/model.bin");
       },
       {"target/model.bin", "link out"}},
      {"folder that is a link out",
       [](const fs::path& p) {
         fs::rename(p / "draft", p.parent_path() / "outside");
         fs::create_directory_symlink("../outside", p / "draft");
       },
       {"draft/", "link out"}},
      {"link that leads nowhere",
       [](const fs::path& p) {
         fs::remove(p / "target/model.bin");
         fs::create_symlink("ghost", p / "target/model.bin");
       },
       {"target/model.bin"}},
      {"a file without a hash",
       [](const fs::path& p) { write_file(p / "tokenizer/tokenizer.json", "{}"); },
       {"tokenizer/tokenizer.json", "not listed"}},
      {"no manifest", [](const fs::path& p) { fs::remove(p / manifest_name); }, {"manifest.json"}},
      {"manifest is no JSON",
       [](const fs::path& p) { write_file(p / manifest_name, "x"); },
       {"manifest.json", "JSON"}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const fs::path changed = copy();
    one.apply(changed);
    expect_error(Package::open(changed), one.named);
    expect_error(verify(changed), one.named);
  }
}

TEST_F(PackTest, LinksInsideThePackAreFine) {
  const fs::path changed = copy();
  fs::create_directory(changed / "blobs");
  fs::rename(changed / "target/model.bin", changed / "blobs/model");
  fs::create_symlink("../blobs/model", changed / "target/model.bin");
  EXPECT_OK(Package::open(changed));
  EXPECT_OK(verify(changed));
}

TEST_F(PackTest, VerifyFindsOneChangedBit) {
  for (const char* file : {"target/embedding.bin", "target/layer-003.bin", "draft/layer-001.bin"}) {
    const fs::path changed = copy();
    std::string bytes = read_file(changed / file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(changed / file, bytes);
    EXPECT_OK(Package::open(changed));  // size and form are right
    expect_error(verify(changed), {file, "SHA-256"});
  }
  const fs::path zeroed = copy();  // a preallocated file whose tail never arrived
  const auto size = fs::file_size(zeroed / "target/head.bin");
  fs::resize_file(zeroed / "target/head.bin", size / 2);
  fs::resize_file(zeroed / "target/head.bin", size);
  expect_error(verify(zeroed), {"target/head.bin", "SHA-256"});
}

TEST_F(PackTest, StepBytesAreThoseOfTheSections) {
  const auto package = Package::open(pack()).value();
  const StepBytes step = step_bytes(*package);
  std::map<std::string, std::int64_t> bytes;
  for (const SectionInfo& section : package->sections()) bytes[section.name] += section.bytes;
  EXPECT_EQ(step.head, 1024 * 256 * 9 / 16);
  EXPECT_EQ(step.draft_head, step.head);
  EXPECT_EQ(step.draft_context, 2 * 2 * 128 * 256 * 9 / 16);
  EXPECT_EQ(step.gdn_state, 2 * 3 * (6 * 128 * 128 + 3 * 1280) * 4);
  EXPECT_EQ(step.kv_per_token, 2 * (256 + 4));
  EXPECT_EQ(step.total(10), step.weights() + step.gdn_state + 10 * step.kv_per_token);
}

// ---- writing

TEST_F(PackTest, RefusesToReplaceWhatIsNotAPack) {
  write_file(own_ / "thesis/chapter.txt", "years of work");
  expect_error(pack_folder(fixture("dense"), own_ / "thesis", {}), {"thesis", "not a pack"});
  EXPECT_EQ(read_file(own_ / "thesis/chapter.txt"), "years of work");
  write_file(own_ / "file", "x");
  expect_error(pack_folder(fixture("dense"), own_ / "file", {}), {"file", "not a pack"});
  fs::create_directory(own_ / "empty");
  EXPECT_OK(pack_folder(fixture("dense"), own_ / "empty", {}));
}

TEST_F(PackTest, ReplacesAPackWhileItIsInUse) {
  const fs::path place = copy();
  const auto old_package = Package::open(place).value();
  const Weight old_weight = old_package->weight(Component::target, "lm_head");
  const float before = weight_at(old_weight, 3, 5);
  ASSERT_OK(pack_folder(fixture("dense-mlx4"), place, {}));
  EXPECT_EQ(Package::open(place).value()->draft(), nullptr);
  EXPECT_EQ(weight_at(old_weight, 3, 5), before);  // the mapping holds the old files
  EXPECT_EQ(std::distance(fs::directory_iterator(own_.path()), fs::directory_iterator()), 1);
}

// Content whose second half waits for the test: a stand-in for a long packing.
PackContent slow_content(std::function<void()> in_the_middle) {
  const NamedGeometry tiny{.name = "tiny",
                           .target = {.vocab_size = 64,
                                      .hidden_size = 64,
                                      .intermediate_size = 64,
                                      .layers = {Mixer::gdn},
                                      .query_heads = 1,
                                      .kv_heads = 1,
                                      .key_heads = 1,
                                      .value_heads = 1}};
  PackContent content;
  content.manifest.name = "slow";
  content.manifest.target = tiny.target;
  content.manifest.target_source = {.kind = "synthetic", .weights = "q4"};
  for (const SectionShape& shape : target_sections(tiny.target)) {
    SectionContent section = matrix_content(shape, Format::bf16);
    if (shape.role == Role::vector) {
      section.kind = kind_vector;
      section.units = 1;
      section.unit_bytes = shape.elements() * 4;
    }
    const bool last = shape.name == "lm_head";
    section.fill = [last, in_the_middle](std::int64_t, std::int64_t, std::byte*) -> Status {
      if (last) in_the_middle();
      return {};
    };
    content.sections.push_back(std::move(section));
  }
  return content;
}

TEST_F(PackTest, StopLeavesNothing) {
  std::atomic<bool> stop = false;
  const Status status = write_pack(slow_content([&] { stop = true; }), own_ / "pack", {.stop = &stop, .threads = 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::cancelled);
  EXPECT_TRUE(fs::is_empty(own_.path()));
}

TEST_F(PackTest, AKilledProcessLeavesNothingThatLoadsAndTheNextPackCleansUp) {
  const pid_t child = ::fork();
  if (child == 0) {
    (void)write_pack(slow_content([] { ::kill(::getpid(), SIGKILL); }), own_ / "pack", {.threads = 1});
    ::_exit(0);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFSIGNALED(state));
  const fs::path partial = own_ / ("pack.partial-" + std::to_string(child));
  ASSERT_TRUE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(own_ / "pack"));
  EXPECT_FALSE(Package::open(partial));
  ASSERT_OK(write_pack(slow_content([] {}), own_ / "pack", {.threads = 2}));
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_OK(Package::open(own_ / "pack"));
}

TEST_F(PackTest, AFullDiskIsAnErrorThatLeavesNothing) {
  PackContent content = slow_content([] {});
  content.sections.back().fill = [](std::int64_t, std::int64_t, std::byte*) -> Status {
    return fail(ErrorKind::io, "no space left");
  };
  expect_error(write_pack(std::move(content), own_ / "pack", {}), {"no space left"});
  EXPECT_TRUE(fs::is_empty(own_.path()));
}

// ---- the cache

class CacheTest : public testing::Test {
 protected:
  CacheTest() {
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
    fs::copy(fixture("dense"), folder_ / "model");
    fs::permissions(folder_ / "model/config.json", fs::perms::owner_write, fs::perm_options::add);
    fs::permissions(folder_ / "model/model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  }
  ~CacheTest() override { ::unsetenv("XDG_CACHE_HOME"); }

  std::shared_ptr<const Package> open(const PackOptions& options = {}) {
    auto package = open_model(folder_ / "model", options);
    EXPECT_OK(package);
    return package ? *package : nullptr;
  }
  // Changes when the pack is made anew.
  static ino_t identity(const Package& package) {
    struct stat facts {};
    ::stat((package.folder() / "target/head.bin").c_str(), &facts);
    return facts.st_ino;
  }

  TemporaryFolder folder_;
};

TEST_F(CacheTest, PacksOnceAndReuses) {
  const auto first = open();
  const auto second = open();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->folder(), second->folder());
  EXPECT_EQ(identity(*first), identity(*second));
  EXPECT_EQ(first->folder().string().find((folder_ / "cache/splash").string()), 0u);
}

TEST_F(CacheTest, EveryChoiceHasItsOwnPlace) {
  const auto plain = open();
  const auto source = open({.weights = WeightChoice::source});
  const auto drafted = open({.draft = fixture("dense-draft")});
  ASSERT_TRUE(plain && source && drafted);
  EXPECT_NE(plain->folder(), source->folder());
  EXPECT_NE(plain->folder(), drafted->folder());
  EXPECT_EQ(source->weight(Component::target, "lm_head").format, Format::bf16);
  EXPECT_NE(drafted->draft(), nullptr);
}

TEST_F(CacheTest, ATouchedSourceIsHashedAndKept) {
  const ino_t before = identity(*open());
  const auto file = folder_ / "model/model.safetensors";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::hours(1));
  const auto package = open();
  EXPECT_EQ(identity(*package), before);
  const auto manifest = parse_manifest(read_file(package->folder() / manifest_name), "manifest.json");
  ASSERT_OK(manifest);
  for (const SourceFile& source : manifest->target_source.files) {
    struct stat facts {};
    ::stat((folder_ / ("model/" + source.path)).c_str(), &facts);
    EXPECT_EQ(source.modified_ns, facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec) << source.path;
  }
}

TEST_F(CacheTest, AChangedSourceIsPackedAgain) {
  const ino_t before = identity(*open());
  std::string bytes = read_file(folder_ / "model/model.safetensors");
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);  // the last value of the last tensor
  write_file(folder_ / "model/model.safetensors", bytes);
  const auto changed = open();
  EXPECT_NE(identity(*changed), before);
  write_file(folder_ / "model/tokenizer.json", "{}");  // a file that was not there
  EXPECT_TRUE(open()->tokenizer_folder());
  fs::remove(folder_ / "model/tokenizer.json");
  EXPECT_FALSE(open()->tokenizer_folder());
}

TEST_F(CacheTest, ADamagedCacheIsPackedAgain) {
  const fs::path place = open()->folder();
  fs::resize_file(place / "target/head.bin", 16384);
  EXPECT_OK(Package::open(open()->folder()));
  write_file(place / manifest_name, "{\"schema\":0}");
  EXPECT_OK(Package::open(open()->folder()));
}

TEST_F(CacheTest, TwoProcessesPackOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(open_model(folder_ / "model", {}) ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_EQ(state, 0);
  }
  int packs = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "cache/splash/packs")) packs += entry.is_directory();
  EXPECT_EQ(packs, 1);
}

TEST_F(CacheTest, OtherFoldersAreNamed) {
  expect_error(open_model(folder_ / "none", {}), {"none", "no such folder"});
  expect_error(open_model(folder_ / "cache", {}), {"cache"});
  fs::create_directory(folder_ / "empty");
  expect_error(open_model(folder_ / "empty", {}), {"empty", "manifest.json", "config.json"});
  const auto package = open();
  expect_error(open_model(package->folder(), {.draft = fixture("dense-draft")}), {"pack already"});
  EXPECT_OK(open_model(package->folder(), {}));
}

// ---- synthetic packs

TEST(Synth, TinyPackOfTrueFormVerifies) {
  NamedGeometry named = named_geometries()[1];
  for (std::int32_t* vocab : {&named.target.vocab_size, &named.draft.vocab_size}) *vocab = 200;  // not a multiple of 16
  for (int* hidden : {&named.target.hidden_size, &named.draft.hidden_size}) *hidden = 128;
  for (int* width : {&named.target.intermediate_size, &named.draft.intermediate_size}) *width = 192;
  named.target.layers = {Mixer::gdn, Mixer::gdn, Mixer::gdn, Mixer::attention};
  named.target.query_heads = 2, named.target.kv_heads = 1, named.target.key_heads = 1, named.target.value_heads = 3;
  named.draft.mask_token = 199;
  named.draft.taps = {0, 1, 2};
  const TemporaryFolder folder;
  ASSERT_OK(synth_pack(folder / "pack", named, {}));
  ASSERT_OK(verify(folder / "pack"));
  const auto package = Package::open(folder / "pack").value();
  EXPECT_EQ(package->target(), named.target);
  EXPECT_EQ(*package->draft(), named.draft);
  EXPECT_FALSE(package->tokenizer_folder());
  fs::create_directory(folder / "words");
  expect_error(synth_pack(folder / "served", named, {.tokenizer = folder / "words"}), {"words", "tokenizer.json"});
  write_file(folder / "words/tokenizer.json", "{}");
  ASSERT_OK(synth_pack(folder / "served", named, {.tokenizer = folder / "words"}));
  EXPECT_EQ(Package::open(folder / "served").value()->tokenizer_folder(), folder / "served/tokenizer");

  const Weight weight = package->weight(Component::target, "layers.0.mlp.gate_proj");
  double sum = 0, squares = 0;
  for (int n = 0; n < weight.rows; ++n) {
    for (int k = 0; k < weight.cols; ++k) {
      sum += weight_at(weight, n, k);
      squares += weight_at(weight, n, k) * weight_at(weight, n, k);
    }
  }
  const double count = double(weight.rows) * weight.cols;
  EXPECT_NEAR(sum / count, 0.0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / count) * std::sqrt(weight.cols), 1.0, 0.1);
  const Weight padded = package->weight(Component::target, "embed_tokens");
  for (int n = 200; n < 208; ++n) EXPECT_EQ(weight_at(padded, n, 77), 0.0f);
  for (const float gain : package->vector(Component::target, "norm")) EXPECT_NEAR(gain, 1.0f, 0.6f);
}

TEST(Synth, GeometriesMatchTheirDrafts) {
  for (const NamedGeometry& named : named_geometries()) {
    SCOPED_TRACE(named.name);
    std::int64_t target_bytes = 0, draft_bytes = 0;
    for (const SectionShape& shape : target_sections(named.target)) {
      if (shape.role == Role::matrix) target_bytes += section_bytes(shape.role, "q4", shape.rows, shape.cols);
    }
    for (const SectionShape& shape : draft_sections(named.draft)) {
      if (shape.role == Role::matrix) draft_bytes += section_bytes(shape.role, "q4", shape.rows, shape.cols);
    }
    EXPECT_GT(target_bytes, draft_bytes);
    if (named.name == "27b") {  // the accounts of spec/qwen-models.md 1.1 and dflash2.md 3.4
      EXPECT_EQ(target_bytes, 26'893'352'960 / 16 * 9);
      EXPECT_EQ(draft_bytes, 1'010'810'880);
    }
  }
  expect_error(synth_pack("x", {.geometry = "28b"}), {"28b", "27b"});
  expect_error(synth_pack("x", {.geometry = "27b", .layers = 65}), {"64 layers"});
}

}  // namespace
}  // namespace splash::pack
