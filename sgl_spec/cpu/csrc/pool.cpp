#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sgl_spec {

namespace {

constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// One parallel call. Workers hold it by shared_ptr, so a late one finds no chunk left and lets go.
struct Job {
  const std::function<void(int64_t)>* work;
  int64_t chunks;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};

  void run() {
    for (int64_t i = next.fetch_add(1); i < chunks; i = next.fetch_add(1)) {
      (*work)(i);
      done.fetch_add(1, std::memory_order_release);
    }
  }
  bool finished() const { return done.load(std::memory_order_acquire) == chunks; }
};

class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      ticket_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
  }
  void run(const std::shared_ptr<Job>& job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      ticket_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job->run();
    for (int spin = 0; !job->finished(); ++spin) {
      if (spin < kSpins) relax();
      else std::this_thread::yield();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    job_.reset();
  }

 private:
  void loop() {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && ticket_.load(std::memory_order_acquire) == seen; ++spin) relax();
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return ticket_.load() != seen; });
        seen = ticket_.load();
        if (stop_) return;
        job = job_;
      }
      if (job) job->run();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<Job> job_;
  std::atomic<uint64_t> ticket_{0};
  bool stop_ = false;
};

std::mutex pool_mutex;
std::unique_ptr<Pool> pool;
int pool_threads = 1;

// A forked child has none of the threads: it forgets the pool (joining it would wait for ever) and works alone.
void forget_in_child() {
  (void)pool.release();
  pool_threads = 1;
}
const int fork_hook = pthread_atfork(nullptr, nullptr, forget_in_child);

}  // namespace

void set_threads(int threads) {
  std::lock_guard<std::mutex> lock(pool_mutex);
  threads = threads < 1 ? 1 : threads;
  if (threads == pool_threads) return;
  pool.reset();
  if (threads > 1) pool = std::make_unique<Pool>(threads - 1);
  pool_threads = threads;
}

int get_threads() {
  std::lock_guard<std::mutex> lock(pool_mutex);
  return pool_threads;
}

void parallel(int64_t chunks, const std::function<void(int64_t)>& work) {
  std::unique_lock<std::mutex> lock(pool_mutex, std::try_to_lock);
  if (chunks < 2 || !lock.owns_lock() || !pool) {  // a second caller at the same time works alone
    for (int64_t i = 0; i < chunks; ++i) work(i);
    return;
  }
  auto job = std::make_shared<Job>();
  job->work = &work;
  job->chunks = chunks;
  pool->run(job);
}

}  // namespace sgl_spec
