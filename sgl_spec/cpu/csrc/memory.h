// Storage for packed weights on huge pages.
#pragma once
#include <cstddef>
#include <memory>

namespace sgl_spec {

// Zeroed memory, aligned to 64 bytes, on 2 MB pages where the kernel grants them (worth 5-10% when weights are
// streamed). Small requests share a region, in the order of the calls: packing a model layer by layer puts the
// layers next to each other, and the prefetcher of one matrix runs into the next.
std::shared_ptr<void> huge_alloc(std::size_t bytes);

}  // namespace sgl_spec
