// Limits that both halves check at the door, by name.
#pragma once

namespace splash::link {

inline constexpr int max_lanes = 8;             // seats in the running batch
inline constexpr int max_block = 16;            // widest verify block, the anchor included
inline constexpr int page_tokens = 32;          // rows of a KV page and of a prefix block
inline constexpr int max_context = 262'144;     // positions the family was trained for
inline constexpr int max_queued_requests = 256; // waiting for a lane; more are told to come back
inline constexpr int max_stop_tokens = 64;

}  // namespace splash::link
