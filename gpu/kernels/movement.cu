// Kernels that move elements and compute nothing.

// The bytes that one thread copies: tensors lie at multiples of their elements.
__device__ static u64 unit(u64 bytes) {
    return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
}

extern "C" __global__ void concat_part(ConcatPartArguments a) {
    // The first byte of the part may lie at a multiple of its elements only.
    u64 bytes = unit(a.bytes | a.step | a.y), each = a.bytes / bytes;
    for (u64 i = first_of_thread(); i < a.blocks * each; i += all_threads()) {
        copy_element(a.x, i, a.y + i / each * a.step, i % each, bytes);
    }
}

extern "C" __global__ void gather(GatherArguments a) {
    u64 bytes = unit(a.bytes), each = a.bytes / bytes;
    for (u64 i = first_of_thread(); i < a.outer * a.chosen * each; i += all_threads()) {
        u64 part = i / each, outer = part / a.chosen;
        i64 index = whole_at((u32)a.index_element, a.indices, part % a.chosen);
        if (index < 0) index += a.size;
        if (index < 0 || (u64)index >= a.size) {
            *(u32*)a.status = INDEX_OUT_OF_RANGE;
            continue;
        }
        copy_element(a.data, (outer * a.size + (u64)index) * each + i % each, a.y, i, bytes);
    }
}

extern "C" __global__ void strided_copy(StridedCopyArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        copy_element(a.x, (i64)a.offset + place(i, a.shape, a.strides), a.y, i, a.bytes);
    }
}

// Returns the index that is read for one that may lie outside; -1 if there is none.
__device__ static i64 padded_index(i64 index, i64 size, u32 fill) {
    if (index >= 0 && index < size) return index;
    if (fill == PAD_CONSTANT) return -1;
    if (fill == PAD_EDGE) return index < 0 ? 0 : size - 1;
    if (size == 1) return 0;
    i64 period = 2 * (size - 1), folded = (index % period + period) % period;
    return folded < period - folded ? folded : period - folded;
}

extern "C" __global__ void pad(PadArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        u64 rest = i;
        i64 at = 0, stride = 1;
        bool inside = true;
        for (int axis = MAX_RANK - 1; axis >= 0; --axis) {
            i64 size = a.input_shape[axis], index = (i64)(rest % a.output_shape[axis]) - a.begins[axis];
            rest /= a.output_shape[axis];
            index = padded_index(index, size, a.fill);
            inside = inside && index >= 0;
            at += index * stride;
            stride *= size;
        }
        if (inside) {
            copy_element(a.x, at, a.y, i, a.bytes);
        } else if (a.bytes == 1) {
            ((u8*)a.y)[i] = (u8)a.value;
        } else if (a.bytes == 2) {
            ((u16*)a.y)[i] = (u16)a.value;
        } else if (a.bytes == 4) {
            ((u32*)a.y)[i] = (u32)a.value;
        } else {
            ((u64*)a.y)[i] = a.value;
        }
    }
}
