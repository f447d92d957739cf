#include "pack/manifest.h"

#include <algorithm>
#include <map>
#include <set>

#include "pack/config.h"
#include "pack/json.h"

namespace splash::pack {
namespace {

namespace json = boost::json;

constexpr std::int64_t largest_file = std::int64_t{1} << 46;

json::array ints(const std::vector<int>& values) {
  json::array array;
  for (const int value : values) array.emplace_back(value);
  return array;
}

json::object geometry_json(const TargetGeometry& g) {
  json::array layers;
  for (const Mixer mixer : g.layers) layers.emplace_back(mixer == Mixer::gdn ? "gdn" : "attention");
  return {{"vocab_size", g.vocab_size},  {"hidden_size", g.hidden_size},    {"intermediate_size", g.intermediate_size},
          {"layers", std::move(layers)}, {"query_heads", g.query_heads},    {"kv_heads", g.kv_heads},
          {"head_dim", g.head_dim},      {"rotary_dim", g.rotary_dim},      {"rope_theta", g.rope_theta},
          {"key_heads", g.key_heads},    {"value_heads", g.value_heads},    {"key_dim", g.key_dim},
          {"value_dim", g.value_dim},    {"conv_kernel", g.conv_kernel},    {"rms_eps", g.rms_eps},
          {"tied_head", g.tied_head},    {"max_positions", g.max_positions}};
}

json::object geometry_json(const DraftGeometry& g) {
  return {{"vocab_size", g.vocab_size},
          {"hidden_size", g.hidden_size},
          {"intermediate_size", g.intermediate_size},
          {"layers", g.layers},
          {"query_heads", g.query_heads},
          {"kv_heads", g.kv_heads},
          {"head_dim", g.head_dim},
          {"rope_theta", g.rope_theta},
          {"rms_eps", g.rms_eps},
          {"windows", ints(g.windows)},
          {"block_size", g.block_size},
          {"mask_token", g.mask_token},
          {"taps", ints(g.taps)},
          {"conv_group", g.conv_group},
          {"selector_rank", g.selector_rank},
          {"selector_top_k", g.selector_top_k}};
}

json::object provenance_json(const Provenance& provenance) {
  json::array files;
  for (const SourceFile& file : provenance.files) {
    files.emplace_back(json::object{{"path", file.path},
                                    {"size", file.size},
                                    {"modified_ns", file.modified_ns},
                                    {"sample_sha256", file.sample_sha256},
                                    {"sha256", file.sha256}});
  }
  return {{"kind", provenance.kind}, {"weights", provenance.weights}, {"files", std::move(files)}};
}

// Reads the fields of one object and keeps the first error, so that a list of fields stays a list.
class Fields {
 public:
  explicit Fields(const JsonNode& node) : node_(node) {}

  void read(std::string_view key, int& out, int least = 0) {
    take(
        key, [&](const JsonNode& value) { return value.integer(least, 1 << 30); }, out);
  }
  void read(std::string_view key, std::int64_t& out) {
    take(
        key, [](const JsonNode& value) { return value.integer(0, std::int64_t{1} << 62); }, out);
  }
  void read(std::string_view key, double& out) {
    take(
        key, [](const JsonNode& value) { return value.number(0, 1e12); }, out);
  }
  void read(std::string_view key, float& out) {
    take(
        key, [](const JsonNode& value) { return value.number(0, 1e12); }, out);
  }
  void read(std::string_view key, bool& out) {
    take(
        key, [](const JsonNode& value) { return value.boolean(); }, out);
  }
  void read(std::string_view key, std::string& out) {
    take(
        key, [](const JsonNode& value) { return value.text(); }, out);
  }
  void read(std::string_view key, std::vector<int>& out) {
    take(
        key, [](const JsonNode& value) { return read_ints(value); }, out);
  }
  void read(std::string_view key, std::vector<Mixer>& out) {
    take(
        key, [](const JsonNode& value) { return read_mixers(value); }, out);
  }
  const Status& status() const { return status_; }

 private:
  static Result<std::vector<int>> read_ints(const JsonNode& node) {
    SPLASH_TRY(const auto items, node.items());
    std::vector<int> values;
    for (const JsonNode& item : items) {
      SPLASH_TRY(const std::int64_t value, item.integer(0, 1 << 30));
      values.push_back(static_cast<int>(value));
    }
    return values;
  }

  static Result<std::vector<Mixer>> read_mixers(const JsonNode& node) {
    SPLASH_TRY(const auto items, node.items());
    std::vector<Mixer> mixers;
    for (const JsonNode& item : items) {
      SPLASH_TRY(const std::string name, item.text());
      if (name != "gdn" && name != "attention") {
        return fail(ErrorKind::unsupported, "{}: \"{}\" is neither gdn nor attention", item.place(), name);
      }
      mixers.push_back(name == "gdn" ? Mixer::gdn : Mixer::attention);
    }
    return mixers;
  }

  template <class Convert, class Out>
  void take(std::string_view key, Convert convert, Out& out) {
    if (!status_) return;
    const auto node = node_.get(key);
    if (!node) return fail_with(node.error());
    auto value = convert(*node);
    if (!value) return fail_with(value.error());
    out = static_cast<Out>(std::move(*value));
  }
  void fail_with(const Error& error) { status_ = tl::unexpected(error); }

  const JsonNode& node_;
  Status status_;
};

Result<TargetGeometry> parse_target(const JsonNode& node) {
  TargetGeometry g;
  Fields fields(node);
  fields.read("vocab_size", g.vocab_size);
  fields.read("hidden_size", g.hidden_size);
  fields.read("intermediate_size", g.intermediate_size);
  fields.read("layers", g.layers);
  fields.read("query_heads", g.query_heads);
  fields.read("kv_heads", g.kv_heads);
  fields.read("head_dim", g.head_dim);
  fields.read("rotary_dim", g.rotary_dim);
  fields.read("rope_theta", g.rope_theta);
  fields.read("key_heads", g.key_heads);
  fields.read("value_heads", g.value_heads);
  fields.read("key_dim", g.key_dim);
  fields.read("value_dim", g.value_dim);
  fields.read("conv_kernel", g.conv_kernel);
  fields.read("rms_eps", g.rms_eps);
  fields.read("tied_head", g.tied_head);
  fields.read("max_positions", g.max_positions);
  SPLASH_TRY_STATUS(fields.status());
  SPLASH_TRY_STATUS(check_geometry(g, node.place()));
  return g;
}

Result<DraftGeometry> parse_draft(const JsonNode& node) {
  DraftGeometry g;
  Fields fields(node);
  fields.read("vocab_size", g.vocab_size);
  fields.read("hidden_size", g.hidden_size);
  fields.read("intermediate_size", g.intermediate_size);
  fields.read("layers", g.layers);
  fields.read("query_heads", g.query_heads);
  fields.read("kv_heads", g.kv_heads);
  fields.read("head_dim", g.head_dim);
  fields.read("rope_theta", g.rope_theta);
  fields.read("rms_eps", g.rms_eps);
  fields.read("windows", g.windows);
  fields.read("block_size", g.block_size);
  fields.read("mask_token", g.mask_token);
  fields.read("taps", g.taps);
  fields.read("conv_group", g.conv_group);
  fields.read("selector_rank", g.selector_rank);
  fields.read("selector_top_k", g.selector_top_k);
  SPLASH_TRY_STATUS(fields.status());
  SPLASH_TRY_STATUS(check_geometry(g, node.place()));
  return g;
}

Status check_hash(std::string_view hash, const JsonNode& node) {
  const bool hex =
      std::all_of(hash.begin(), hash.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (hash.size() == 64 && hex) return {};
  return fail(ErrorKind::corrupt, "{}: not a SHA-256 in lower-case hex", node.place());
}

Result<Provenance> parse_provenance(const JsonNode& node) {
  Provenance provenance;
  Fields fields(node);
  fields.read("kind", provenance.kind);
  fields.read("weights", provenance.weights);
  SPLASH_TRY_STATUS(fields.status());
  SPLASH_TRY(const JsonNode list, node.get("files"));
  SPLASH_TRY(const auto items, list.items());
  for (const JsonNode& item : items) {
    SourceFile file;
    Fields entry(item);
    entry.read("path", file.path);
    entry.read("size", file.size);
    entry.read("modified_ns", file.modified_ns);
    entry.read("sample_sha256", file.sample_sha256);
    entry.read("sha256", file.sha256);
    SPLASH_TRY_STATUS(entry.status());
    SPLASH_TRY_STATUS(check_hash(file.sample_sha256, item));
    SPLASH_TRY_STATUS(check_hash(file.sha256, item));
    provenance.files.push_back(std::move(file));
  }
  return provenance;
}

Result<std::vector<PackedFile>> parse_files(const JsonNode& node) {
  SPLASH_TRY(const auto items, node.items());
  std::vector<PackedFile> files;
  std::set<std::string> paths;
  for (const JsonNode& item : items) {
    PackedFile file;
    Fields fields(item);
    fields.read("path", file.path);
    fields.read("size", file.size);
    fields.read("sha256", file.sha256);
    SPLASH_TRY_STATUS(fields.status());
    SPLASH_TRY_STATUS(check_hash(file.sha256, item));
    if (!is_safe_path(file.path)) {
      return fail(ErrorKind::corrupt, "{}: the path {} leaves the pack's folder or is not plain", item.place(),
                  quote_json(file.path));
    }
    if (!paths.insert(file.path).second) {
      return fail(ErrorKind::corrupt, "{}: the file {} is listed twice", item.place(), file.path);
    }
    if (file.size > largest_file) return fail(ErrorKind::corrupt, "{}: {} bytes", item.place(), file.size);
    files.push_back(std::move(file));
  }
  return files;
}

Result<PackedSection> parse_section(const JsonNode& node) {
  PackedSection section;
  std::string component;
  Fields fields(node);
  fields.read("component", component);
  fields.read("name", section.shape.name);
  fields.read("kind", section.kind);
  fields.read("rows", section.shape.rows, 1);
  fields.read("cols", section.shape.cols, 1);
  fields.read("file", section.shape.file);
  fields.read("offset", section.offset);
  fields.read("bytes", section.bytes);
  SPLASH_TRY_STATUS(fields.status());
  if (component != "target" && component != "draft") {
    return fail(ErrorKind::corrupt, "{}: unknown component \"{}\"", node.place(), component);
  }
  section.shape.component = component == "target" ? Component::target : Component::draft;
  return section;
}

using SectionKey = std::pair<Component, std::string>;

// Shape, kind and bytes against what the geometry demands; the role comes from the geometry, never from the file.
Status check_section(PackedSection& section, const std::map<SectionKey, SectionShape>& demanded,
                     const std::map<std::string, std::int64_t>& file_sizes, std::string_view manifest) {
  SectionShape& shape = section.shape;
  const std::string place = fmt::format("{}: section {} {}", manifest, component_name(shape.component), shape.name);
  const auto wanted = demanded.find({shape.component, shape.name});
  if (wanted == demanded.end()) return fail(ErrorKind::corrupt, "{}: the geometry has no such section", place);
  if (shape.rows != wanted->second.rows || shape.cols != wanted->second.cols) {
    return fail(ErrorKind::corrupt, "{}: shape [{}, {}], the geometry needs [{}, {}]", place, shape.rows, shape.cols,
                wanted->second.rows, wanted->second.cols);
  }
  shape.role = wanted->second.role;
  const std::int64_t bytes = section_bytes(shape.role, section.kind, shape.rows, shape.cols);
  if (bytes == 0) return fail(ErrorKind::corrupt, "{}: it cannot be of kind \"{}\"", place, section.kind);
  if (bytes != section.bytes) {
    return fail(ErrorKind::corrupt, "{}: {} bytes, its kind and shape need {}", place, section.bytes, bytes);
  }
  const auto size = file_sizes.find(shape.file);
  if (size == file_sizes.end()) {
    return fail(ErrorKind::corrupt, "{}: its file {} is not listed", place, quote_json(shape.file));
  }
  if (section.offset % section_alignment != 0) {
    return fail(ErrorKind::corrupt, "{}: offset {} in {} is not a multiple of {}", place, section.offset, shape.file,
                section_alignment);
  }
  if (section.offset > size->second || bytes > size->second - section.offset) {
    return fail(ErrorKind::corrupt, "{}: [{}, +{}) lies outside the {} bytes of {}", place, section.offset, bytes,
                size->second, shape.file);
  }
  return {};
}

Status check_apart(const std::vector<PackedSection>& sections, std::string_view manifest) {
  std::map<std::pair<std::string, std::int64_t>, const PackedSection*> starts;
  for (const PackedSection& section : sections) {
    const auto [at, fresh] = starts.emplace(std::pair(section.shape.file, section.offset), &section);
    if (!fresh) {
      return fail(ErrorKind::corrupt, "{}: sections {} and {} overlap in {}", manifest, at->second->shape.name,
                  section.shape.name, section.shape.file);
    }
  }
  const PackedSection* before = nullptr;
  for (const auto& [start, section] : starts) {
    if (before != nullptr && before->shape.file == start.first && before->offset + before->bytes > start.second) {
      return fail(ErrorKind::corrupt, "{}: sections {} and {} overlap in {}", manifest, before->shape.name,
                  section->shape.name, start.first);
    }
    before = section;
  }
  return {};
}

Status parse_sections(const JsonNode& node, Manifest& manifest, std::string_view file) {
  std::map<SectionKey, SectionShape> demanded;
  for (SectionShape& shape : target_sections(manifest.target)) {
    demanded.emplace(SectionKey(shape.component, shape.name), shape);
  }
  if (manifest.draft) {
    for (SectionShape& shape : draft_sections(*manifest.draft)) {
      demanded.emplace(SectionKey(shape.component, shape.name), shape);
    }
  }
  std::map<std::string, std::int64_t> file_sizes;
  for (const PackedFile& packed : manifest.files) file_sizes.emplace(packed.path, packed.size);

  SPLASH_TRY(const auto items, node.items());
  std::set<SectionKey> seen;
  for (const JsonNode& item : items) {
    SPLASH_TRY(PackedSection section, parse_section(item));
    SPLASH_TRY_STATUS(check_section(section, demanded, file_sizes, file));
    if (!seen.emplace(section.shape.component, section.shape.name).second) {
      return fail(ErrorKind::corrupt, "{}: the section {} is listed twice", item.place(), section.shape.name);
    }
    manifest.sections.push_back(std::move(section));
  }
  for (const auto& [key, shape] : demanded) {
    if (!seen.contains(key)) {
      return fail(ErrorKind::corrupt, "{}: the {} section {} is missing", file, component_name(key.first), key.second);
    }
  }
  return check_apart(manifest.sections, file);
}

Result<Manifest> read_manifest(const JsonNode& root, std::string_view file) {
  SPLASH_TRY(const JsonNode schema_node, root.get("schema"));
  SPLASH_TRY(const std::int64_t schema, schema_node.integer(0, 1 << 30));
  if (schema != manifest_schema) {
    return fail(ErrorKind::unsupported, "{}: schema {}, this version reads schema {}: pack the source again", file,
                schema, manifest_schema);
  }
  Manifest manifest;
  Fields fields(root);
  fields.read("name", manifest.name);
  SPLASH_TRY_STATUS(fields.status());
  SPLASH_TRY(const JsonNode source, root.get("source"));
  SPLASH_TRY(manifest.target_source, parse_provenance(source));
  SPLASH_TRY(const JsonNode target, root.get("target"));
  SPLASH_TRY(manifest.target, parse_target(target));
  if (const auto draft = root.find("draft")) {
    SPLASH_TRY(manifest.draft, parse_draft(*draft));
    SPLASH_TRY_STATUS(check_match(manifest.target, *manifest.draft, file));
    SPLASH_TRY(const JsonNode draft_source, root.get("draft_source"));
    SPLASH_TRY(manifest.draft_source, parse_provenance(draft_source));
  }
  SPLASH_TRY(const JsonNode files, root.get("files"));
  SPLASH_TRY(manifest.files, parse_files(files));
  SPLASH_TRY(const JsonNode sections, root.get("sections"));
  SPLASH_TRY_STATUS(parse_sections(sections, manifest, file));
  return manifest;
}

// One entry of a list per line: a manifest is read by people too.
std::string array_text(const std::vector<json::object>& entries) {
  std::string text = "[";
  for (const json::object& entry : entries) {
    text += text.size() > 1 ? ",\n  " : "\n  ";
    text += json::serialize(entry);
  }
  text += "\n ]";
  return text;
}

}  // namespace

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.front() == '/') return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

std::string manifest_text(const Manifest& manifest) {
  std::vector<json::object> files, sections;
  for (const PackedFile& file : manifest.files) {
    files.push_back({{"path", file.path}, {"size", file.size}, {"sha256", file.sha256}});
  }
  for (const PackedSection& section : manifest.sections) {
    sections.push_back({{"component", component_name(section.shape.component)},
                        {"name", section.shape.name},
                        {"kind", section.kind},
                        {"rows", section.shape.rows},
                        {"cols", section.shape.cols},
                        {"file", section.shape.file},
                        {"offset", section.offset},
                        {"bytes", section.bytes}});
  }
  const json::object format{{"strip_rows", strip_rows},
                            {"tile_cols", tile_cols},
                            {"tile_bytes", tile_bytes},
                            {"section_alignment", section_alignment}};
  std::string text = fmt::format("{{\n \"schema\": {},\n \"name\": {},\n \"format\": {}", manifest_schema,
                                 quote_json(manifest.name), json::serialize(format));
  text += ",\n \"source\": " + json::serialize(provenance_json(manifest.target_source));
  text += ",\n \"target\": " + json::serialize(geometry_json(manifest.target));
  if (manifest.draft) {
    text += ",\n \"draft_source\": " + json::serialize(provenance_json(manifest.draft_source.value_or(Provenance{})));
    text += ",\n \"draft\": " + json::serialize(geometry_json(*manifest.draft));
  }
  text += ",\n \"files\": " + array_text(files) + ",\n \"sections\": " + array_text(sections) + "\n}\n";
  return text;
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view file) {
  SPLASH_TRY(const json::value document, parse_json(text, file));
  auto manifest = read_manifest(JsonNode(document, fmt::format("{}: ", file)), file);
  if (!manifest) manifest.error().parameter = file;
  return manifest;
}

}  // namespace splash::pack
