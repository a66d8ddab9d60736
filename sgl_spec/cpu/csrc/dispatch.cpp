// Run-time choice of the instruction set.
#include <stdexcept>

#include "kernels.h"

namespace sgl_spec {

namespace {

const Kernels* table(const std::string& isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (isa == "avx512" && avx512) return kernels_avx512();
  if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2();
#endif
  if (isa == "portable") return kernels_portable();
  return nullptr;
}

std::string preferred;

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const char* isa : {"avx512", "avx2", "portable"})
    if (table(isa)) names.emplace_back(isa);
  return names;
}

const Kernels& kernels_for(const std::string& isa) {
  static const std::string best = available_isas().front();
  const std::string& name = !isa.empty() ? isa : !preferred.empty() ? preferred : best;
  const Kernels* found = table(name);
  if (!found) throw std::invalid_argument("the instruction set '" + name + "' is not available on this machine");
  return *found;
}

void use_isa(const std::string& isa) {
  if (!isa.empty()) kernels_for(isa);
  preferred = isa;
}

}  // namespace sgl_spec
