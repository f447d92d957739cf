// Everything a step's kernels read that changes from step to step: written by the host into pinned memory, copied once,
// read at fixed addresses, so that a recorded step sees its own numbers.
#pragma once

#include <vector>

#include "backend/cuda/twin.h"
#include "link/limits.h"
#include "models/dflash2/forward.h"
#include "ops/sampling/law_cuda.h"
#include "ops/segment_cuda.h"

namespace splash::models::qwen3_5 {

inline constexpr int least_prefill_rows = cuda::wide_pass_rows;

// Limits that size the tables.
struct TableSizes {
  int lanes = 0;
  int block = 0;         // verify rows of a lane
  int prefill_rows = 0;  // of a step
  int pages = 0;         // of a lane's context
  int draft_layers = 0;
  int mask_words = 0;
};

// The tables of one pass over the lanes of a step; entry i belongs to the i-th lane of the pass.
struct PassTables {
  cuda::TwinTable<Token> tokens;                       // rows of the target pass
  cuda::TwinTable<ops::SegmentEntry> segments;         // [lanes]
  cuda::TwinTable<ops::LaneChoice> choices;            // [lanes]
  cuda::TwinTable<ops::DraftContextSegment> contexts;  // [draft layer][lanes]
  cuda::TwinTable<int> masked_rows;                    // of the logits
};

// What a mark (model.h) adds to a prefill pass.
struct MarkTables {
  cuda::TwinTable<ops::SegmentEntry> until;            // [lanes]: the segments, the marked one up to its mark
  cuda::TwinTable<ops::SegmentEntry> rest;             // [1]
  cuda::TwinTable<ops::DraftContextSegment> contexts;  // [draft layer]: of the rows behind the mark
};

struct StepTables {
  static Result<StepTables> make(const TableSizes& sizes);

  cuda::Twin of_prefill, of_decode;  // the one is copied before a pass, the other fetched by the recorded step
  PassTables prefill, decode;
  MarkTables mark;
  cuda::TwinTable<Token> draft_tokens;             // [lanes][block]
  cuda::TwinTable<ops::DraftBlockSegment> blocks;  // [draft layer][lanes]

  cuda::Twin own;                             // copied in parts
  cuda::TwinTable<ops::PageId> pages;         // [lane][pages]
  cuda::TwinTable<std::uint32_t> masks;       // [row][mask_words]
  cuda::TwinTable<Token> drafted;             // host: the walked tokens of a step with grammars
  cuda::PinnedBuffer results;                 // written by the device
  ops::LaneChosen* prefill_chosen = nullptr;  // [lanes] each, in `results`
  ops::LaneChosen* decode_chosen = nullptr;
  TableSizes sizes;

  // Pages of a lane, as far as they changed. The entries of both passes point here.
  void set_pages(cuda::Stream& stream, int lane, std::span<const ops::PageId> list);
  const ops::PageId* pages_of(int lane) const { return pages.device + std::int64_t{lane} * sizes.pages; }
};

}  // namespace splash::models::qwen3_5
