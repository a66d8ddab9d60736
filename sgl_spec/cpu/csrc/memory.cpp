#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>

namespace sgl_spec {

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kRegion = std::size_t{64} << 20;

class Region {
 public:
  explicit Region(std::size_t bytes) : mapped_(bytes + kPage) {
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = p;
    auto address = (reinterpret_cast<std::uintptr_t>(p) + kPage - 1) / kPage * kPage;
    data_ = reinterpret_cast<char*>(address);
#ifdef MADV_HUGEPAGE
    (void)madvise(data_, bytes, MADV_HUGEPAGE);  // advice only: refused on kernels without huge pages
#endif
  }
  ~Region() { munmap(base_, mapped_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  char* data() const { return data_; }

 private:
  std::size_t mapped_;
  void* base_;
  char* data_;
};

std::mutex region_mutex;
std::weak_ptr<Region> open_region;  // freed when the last weight inside it is
std::size_t open_used = 0;

}  // namespace

std::shared_ptr<void> huge_alloc(std::size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (bytes > kRegion / 2) {
    auto own = std::make_shared<Region>((bytes + kPage - 1) / kPage * kPage);
    return std::shared_ptr<void>(own, own->data());
  }
  std::lock_guard<std::mutex> lock(region_mutex);
  auto region = open_region.lock();
  if (!region || open_used + bytes > kRegion) {
    region = std::make_shared<Region>(kRegion);
    open_region = region;
    open_used = 0;
  }
  void* p = region->data() + open_used;
  open_used += bytes;
  return std::shared_ptr<void>(region, p);
}

}  // namespace sgl_spec
