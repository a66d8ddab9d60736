// Run-time choice of the instruction set.
#include <stdexcept>

#include "kernels.h"

namespace sgl_spec {

namespace {

const Kernels* table(const std::string& isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return kernels_avx512();
  if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2();
#endif
  if (isa == "portable") return kernels_portable();
  return nullptr;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const char* isa : {"avx512", "avx2", "portable"})
    if (table(isa)) names.emplace_back(isa);
  return names;
}

const Kernels& kernels_for(const std::string& isa) {
  const Kernels* found = table(isa.empty() ? available_isas().front() : isa);
  if (!found) throw std::invalid_argument("the instruction set '" + isa + "' is not available on this machine");
  return *found;
}

}  // namespace sgl_spec
