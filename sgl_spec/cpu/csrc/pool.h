// A thread pool that cannot collapse under contention.
#pragma once
#include <cstdint>
#include <functional>

namespace sgl_spec {

// Threads that later calls may use, the caller included; at least 1.
void set_threads(int threads);
int get_threads();

// Calls work(i) once for each i in [0, chunks), on the caller's thread and on idle workers. Chunks are claimed one
// by one, and the caller waits only for chunks that a worker has really begun: a worker that the machine does not
// schedule costs nothing. Workers look for new work for about 50 microseconds, then sleep.
void parallel(int64_t chunks, const std::function<void(int64_t)>& work);

}  // namespace sgl_spec
