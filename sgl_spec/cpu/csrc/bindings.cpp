// The Python module. Tensors arrive as addresses that the Python wrappers have checked; the GIL is released.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "attend.h"
#include "greedy.h"
#include "kernels.h"
#include "linear.h"
#include "llama.h"
#include "pool.h"

namespace py = pybind11;
using sgl_spec::PackedLinear;
using sgl_spec::Storage;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("available_isas", &sgl_spec::available_isas);
  m.def("use_isa", &sgl_spec::use_isa);
  m.def("set_threads", &sgl_spec::set_threads, py::call_guard<py::gil_scoped_release>());
  // sizes: tokens, ldq, columns, heads, kv_heads, dim, v_dim, window.
  m.def("attend",
        [](uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t req_to_token, uintptr_t rows, uintptr_t kv_len, uintptr_t out,
           const std::vector<int64_t>& s, float scale, float cap) {
          py::gil_scoped_release free;
          attend_tokens(sgl_spec::kernels_for(""),
                        {at<const float>(q), at<const float>(k), at<const float>(v), at<const int32_t>(req_to_token),
                         at<const int64_t>(rows), at<const int64_t>(kv_len), at<float>(out), s[1], s[2], s[3], s[4], s[5],
                         s[6], s[7], scale, cap},
                        s[0]);
        });
  m.def("get_threads", &sgl_spec::get_threads);
  // The index of each row's maximum, for rows of x [rows, n].
  m.def("argmax",
        [](uintptr_t x, int64_t rows, int64_t n) {
          const auto& kernels = sgl_spec::kernels_for("");
          std::vector<int64_t> best(rows);
          for (int64_t i = 0; i < rows; ++i) best[i] = kernels.argmax(at<const float>(x) + i * n, n, nullptr);
          return best;
        },
        py::call_guard<py::gil_scoped_release>());

  py::class_<PackedLinear>(m, "PackedLinear")
      .def(py::init([](uintptr_t weight, bool bf16, int64_t n, int64_t k, uintptr_t bias, int storage, const std::string& isa) {
        py::gil_scoped_release free;
        return new PackedLinear(at<const void>(weight), bf16, n, k, at<const float>(bias), static_cast<Storage>(storage), isa);
      }))
      .def("forward",
           [](const PackedLinear& self, uintptr_t x, int64_t ldx, int64_t rows, uintptr_t y, int64_t ldy) {
             self.forward(at<const float>(x), ldx, rows, at<float>(y), ldy);
           },
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("memory_bytes", &PackedLinear::memory_bytes)
      .def_property_readonly("isa", &PackedLinear::isa);

  py::class_<sgl_spec::GreedyHead>(m, "GreedyHead")
      .def(py::init([](uintptr_t weight, bool bf16, const PackedLinear& exact, int64_t most_rows) {
             py::gil_scoped_release free;
             return new sgl_spec::GreedyHead(at<const void>(weight), bf16, exact, most_rows);
           }),
           py::keep_alive<1, 4>())
      .def("best",
           [](const sgl_spec::GreedyHead& self, uintptr_t x, int64_t ldx, int64_t rows) {
             std::vector<int64_t> best(rows);
             self.best(at<const float>(x), ldx, rows, best.data());
             return best;
           },
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("memory_bytes", &sgl_spec::GreedyHead::memory_bytes);

  py::class_<sgl_spec::Llama>(m, "Llama")
      // shape: hidden, intermediate, query_heads, kv_heads, head_dim; layers: (qkv, o, gate_up, down, input_norm,
      // post_norm, q_norm, k_norm, keys, values), the first four PackedLinear, the others addresses (0 = none).
      .def(py::init([](const std::vector<int64_t>& shape, float eps, float scale, uintptr_t embedding,
                       uintptr_t final_norm, uintptr_t cos_sin, const py::list& layers, const std::string& isa) {
             std::vector<sgl_spec::LlamaLayer> made;
             for (const auto& item : layers) {
               const auto t = item.cast<py::tuple>();
               const auto linear = [&](int i) { return t[i].cast<const PackedLinear*>(); };
               const auto floats = [&](int i) { return at<float>(t[i].cast<uintptr_t>()); };
               made.push_back({linear(0), linear(1), linear(2), linear(3), floats(4), floats(5), floats(6), floats(7),
                               floats(8), floats(9)});
             }
             return new sgl_spec::Llama({shape[0], shape[1], shape[2], shape[3], shape[4], eps, scale},
                                        at<const float>(embedding), at<const float>(final_norm),
                                        at<const float>(cos_sin), std::move(made), isa);
           }))
      .def("forward",
           [](const sgl_spec::Llama& self, uintptr_t ids, uintptr_t positions, uintptr_t slots, uintptr_t rows,
              int64_t count, uintptr_t req_to_token, int64_t row_stride, uintptr_t out) {
             self.forward({at<const int64_t>(ids), at<const int64_t>(positions), at<const int64_t>(slots),
                           at<const int64_t>(rows), count, at<const int32_t>(req_to_token), row_stride},
                          at<float>(out));
           },
           py::call_guard<py::gil_scoped_release>())
      // spans: (row, start, ids) for each request; their slots are those in req_to_token.
      .def("states",
           [](const sgl_spec::Llama& self, const std::vector<sgl_spec::Span>& spans, uintptr_t req_to_token,
              int64_t row_stride, uintptr_t out) {
             self.forward(sgl_spec::SpanTokens(spans, at<const int32_t>(req_to_token), row_stride).tokens(), at<float>(out));
           },
           py::call_guard<py::gil_scoped_release>())
      .def("best",
           [](const sgl_spec::Llama& self, const std::vector<sgl_spec::Span>& spans, uintptr_t req_to_token,
              int64_t row_stride, const sgl_spec::GreedyHead& head) {
             return self.best(sgl_spec::SpanTokens(spans, at<const int32_t>(req_to_token), row_stride).tokens(), head);
           },
           py::call_guard<py::gil_scoped_release>())
      // orders: (count, stop_below, go_on) for each span. Returns tokens, probabilities, seconds of the first forward.
      .def("chain",
           [](const sgl_spec::Llama& self, const std::vector<sgl_spec::Span>& spans, uintptr_t req_to_token,
              int64_t row_stride, const PackedLinear& head, uintptr_t token_ids,
              const std::vector<std::tuple<int64_t, float, float>>& orders) {
             std::vector<sgl_spec::ChainOrder> made;
             for (const auto& [most, stop, go_on] : orders) made.push_back({most, stop, go_on});
             std::vector<sgl_spec::Chain> chains;
             const double first = self.chain(sgl_spec::SpanTokens(spans, at<const int32_t>(req_to_token), row_stride), head,
                                             at<const int64_t>(token_ids), made, &chains);
             std::vector<std::vector<int64_t>> tokens;
             std::vector<std::vector<float>> probabilities;
             for (sgl_spec::Chain& chain : chains) {
               tokens.push_back(std::move(chain.tokens));
               probabilities.push_back(std::move(chain.probabilities));
             }
             return std::make_tuple(std::move(tokens), std::move(probabilities), first);
           },
           py::call_guard<py::gil_scoped_release>());
}
