"""Amounts as people write them. Everything else counts in minor units."""

from __future__ import annotations

NONE = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
THREE = "BHD IQD JOD KWD LYD OMR TND"
DECIMALS = {**dict.fromkeys(NONE.split(), 0), **dict.fromkeys(THREE.split(), 3)}
"""Of the currencies that do not have two (ISO 4217)."""


def spelled(amount: int, currency: str) -> str:
    """`9000, EUR` is `90.00 EUR`; `9000, JPY` is `9000 JPY`."""
    decimals = DECIMALS.get(currency.upper(), 2)
    sign, digits = "-" if amount < 0 else "", str(abs(amount)).rjust(decimals + 1, "0")
    whole = f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    return f"{sign}{whole} {currency}"
