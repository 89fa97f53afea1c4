/* A copy that writes past the caches: streaming.py says why, and compiles this. */

#include <emmintrin.h> /* of x86 processors alone: elsewhere this does not compile, and need not */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LINE_BYTES = 64 };

void stream_copy(char *destination, const char *source, size_t size_bytes)
{
    size_t at = -(uintptr_t)destination % LINE_BYTES; /* such stores want whole lines */
    if (size_bytes < at + LINE_BYTES) {
        memcpy(destination, source, size_bytes);
        return;
    }
    memcpy(destination, source, at);
    for (; at + LINE_BYTES <= size_bytes; at += LINE_BYTES) {
        const __m128i *from = (const __m128i *)(source + at);
        __m128i *to = (__m128i *)(destination + at);
        const __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1);
        const __m128i third = _mm_loadu_si128(from + 2), fourth = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, first);
        _mm_stream_si128(to + 1, second);
        _mm_stream_si128(to + 2, third);
        _mm_stream_si128(to + 3, fourth);
    }
    memcpy(destination + at, source + at, size_bytes - at);
    _mm_sfence(); /* only now may other threads be told: such stores are in no order with others */
}
