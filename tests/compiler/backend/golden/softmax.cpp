// inference
// Means what PyTorch means: the larger or smaller of two is NaN if one is, x of equals; division rounds down.
template <class T> static inline T maximum(T x, T y) { return (y > x || y != y) ? y : x; }
template <class T> static inline T minimum(T x, T y) { return (y < x || y != y) ? y : x; }
template <class T> static inline T absolute(T x) { return x < 0 ? -x : x; }
template <> inline float absolute(float x) { return __builtin_fabsf(x); }
template <> inline double absolute(double x) { return __builtin_fabs(x); }
template <class T> static inline T sign(T x) { return (x > 0) - (x < 0); }
template <class T> static inline T bit_not(T x) { return ~x; }
template <> inline bool bit_not(bool x) { return !x; }
template <class T> static inline bool within(T bits) { return (unsigned long)bits < 8 * sizeof(T); }
template <class T> static inline T shift_left(T x, T y) { return within(y) ? (unsigned long)x << y : 0; }
template <class T> static inline T shift_right(T x, T y) { return within(y) ? x >> y : -(x < 0); }
template <class T> static inline T truncdiv(T x, T y) { return x / y; }
template <class T> static inline T floordiv(T x, T y) { return x / y - ((x % y != 0) & ((x < 0) != (y < 0))); }
template <class T> static inline T remainder(T x, T y) {
    T r = x % y;
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}
template <class T> static inline T real_remainder(T x, T y, T r) { return (r != 0 && (r < 0) != (y < 0)) ? r + y : r; }
template <> inline float remainder(float x, float y) { return real_remainder(x, y, __builtin_fmodf(x, y)); }
template <> inline double remainder(double x, double y) { return real_remainder(x, y, __builtin_fmod(x, y)); }
template <class T> static inline T real_floordiv(T x, T y, T r) {
    if (y == 0) return x / y;
    T q = (x - r) / y;
    if (r != 0 && (y < 0) != (r < 0)) q -= 1;
    T whole = __builtin_floor(q);
    return q == 0 ? (T)__builtin_copysign(T(0), x / y) : (q - whole > T(0.5) ? whole + 1 : whole);
}
template <> inline float floordiv(float x, float y) { return real_floordiv(x, y, __builtin_fmodf(x, y)); }
template <> inline double floordiv(double x, double y) { return real_floordiv(x, y, __builtin_fmod(x, y)); }
template <class T> static inline bool above(T x, T best) { return x > best || (x != x && best == best); }
template <class T> static inline bool below(T x, T best) { return x < best || (x != x && best == best); }
static inline long checked(long at, long size, bool& failed) {
    if ((unsigned long)at < (unsigned long)size) return at;
    failed = true;
    return 0;
}
static inline float from_bf16(unsigned short x) {
    union { unsigned int bits; float value; } u = {(unsigned int)x << 16};
    return u.value;
}
static inline unsigned short to_bf16(float x) {
    union { float value; unsigned int bits; } u = {x};
    unsigned int rounded = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
    return x != x ? 0x7fc0 : (unsigned short)rounded;
}

#pragma omp declare reduction(most: bool, double, float, int, long, short, signed char, unsigned char, unsigned short: omp_out = maximum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
extern "C" __attribute__((simd("notinbranch"))) float expf(float) noexcept;

extern "C" int kernel_softmax(const float* __restrict in_arg0_1, float* __restrict out_div, int threads) {
    for (long i0 = 0; i0 < 8L; i0++) {
        float amax_max = -__builtin_inff();
        #pragma omp simd reduction(most:amax_max)
        for (long r1 = 0; r1 < 16L; r1++) {
            // test_stages.py:LINE return functional.softmax(x, -1)
            amax_max = ::maximum<float>(amax_max, in_arg0_1[16L*i0 + r1]);
        }
        const float amax = (float)amax_max;
        float row_exp[16L];
        double sum_1_sum = 0.0;
        #pragma omp simd reduction(+:sum_1_sum)
        for (long r1 = 0; r1 < 16L; r1++) {
            const float sub = (in_arg0_1[16L*i0 + r1] - amax);
            const float exp = ::expf(sub);
            row_exp[r1] = exp;
            sum_1_sum += exp;
        }
        const float sum_1 = (float)sum_1_sum;
        #pragma omp simd
        for (long r1 = 0; r1 < 16L; r1++) {
            const float sub = (in_arg0_1[16L*i0 + r1] - amax);
            const float div = (row_exp[r1] / sum_1);
            out_div[16L*i0 + r1] = div;
        }
    }
    return 0;
}

