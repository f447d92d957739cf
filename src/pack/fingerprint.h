// Does a source folder still hold what was packed from it? Answered in milliseconds for 55 GB, and honestly: see
// source_holds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "pack/manifest.h"

namespace splash::pack {

// Size, time of modification and sample hash of one file of a source. The sample is the SHA-256 over the size, the
// first MiB (so the whole header of a safetensors file of usual size), 64 blocks of 4 KiB spread evenly and the last
// block; a file up to 4 MiB is hashed whole.
Result<SourceFile> sample_file(const std::filesystem::path& folder, const std::string& relative);

enum class Holding {
  same,        // size, modification time and sample of every file are those recorded
  only_times,  // a time differs (a copy, a touch), but the full SHA-256 of that file is the one recorded
  changed,
};

// `now` are the files of the folder today. A file of the recorded time that was changed in place outside the sampled
// blocks and given its old time back would pass: only `splash pack` into a new folder looks at every byte again.
Result<Holding> source_holds(const std::filesystem::path& folder, const std::vector<std::string>& now,
                             const Provenance& recorded);

// The Hugging Face cache names a blob by the SHA-256 of its content. If `relative` is a link to such a blob, the hash
// must agree: an interrupted download that kept its full length is found here.
Status check_blob_name(const std::filesystem::path& folder, const SourceFile& file);

}  // namespace splash::pack
