#include <cstdint>
struct Object;  // Python's PyObject, never looked into
struct Python {
    void* (*address_in)(Object*);
    Object* (*type)(Object*);
    Object* (*attribute)(Object*, Object*);
    void (*hold)(Object*);
    void (*release)(Object*);
    void (*clear_error)();
    void* (*unlock)();
    void (*lock)(void*);
    Object *none, *no;
};
struct View {  // DLPack's DLTensor
    void* data;
    int32_t device_type, device_id, dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct Bound {
    void (*evaluate)(const float*, float*, int64_t, const void*);
    const void* context;
    int64_t inputs, outputs, release_from;
    Object *tensor, *requires_grad;
    int (*view)(Object*, View*);
};
extern "C" {
Python python;
}

static bool is(Object* found, Object* wanted) {
    if (found) python.release(found); else python.clear_error();
    return found == wanted;
}

// A plain float32 tensor on the CPU, (rows, width), without gaps, that needs no gradient.
static bool plain(const Bound& bound, Object* object, int64_t width, View* view) {
    if (!is(python.type(object), bound.tensor)) return false;
    if (!is(python.attribute(object, bound.requires_grad), python.no)) return false;
    if (bound.view(object, view) != 0) return python.clear_error(), false;
    const bool floats = view->device_type == 1 && view->code == 2 && view->bits == 32 && view->lanes == 1;
    if (!floats || view->dimensions != 2 || view->shape[1] != width) return false;
    if (view->byte_offset || !view->strides) return false;
    return (width == 1 || view->strides[1] == 1) && (view->shape[0] < 2 || view->strides[0] == width);
}

extern "C" Object* call(Object* self, Object* const* arguments, intptr_t count) {
    const Bound& bound = *static_cast<const Bound*>(python.address_in(self));
    View x, y;
    Object* answer = python.none;
    if (count == 2 && plain(bound, arguments[0], bound.inputs, &x) && plain(bound, arguments[1], bound.outputs, &y) &&
        x.shape[0] == y.shape[0]) {
        const int64_t rows = x.shape[0];
        const float *from = static_cast<float*>(x.data), *from_end = from + rows * bound.inputs;
        float *to = static_cast<float*>(y.data), *to_end = to + rows * bound.outputs;
        if (from_end <= to || to_end <= from) {
            void* thread = rows >= bound.release_from ? python.unlock() : nullptr;
            bound.evaluate(from, to, rows, bound.context);
            if (thread) python.lock(thread);
            answer = arguments[1];
        }
    }
    python.hold(answer);
    return answer;
}
