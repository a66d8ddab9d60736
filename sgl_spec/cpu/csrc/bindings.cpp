// The Python module. Tensors arrive as addresses that the Python wrappers have checked; the GIL is released.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernels.h"
#include "linear.h"
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
  m.def("set_threads", &sgl_spec::set_threads, py::call_guard<py::gil_scoped_release>());
  m.def("get_threads", &sgl_spec::get_threads);

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
}
