"""Money: integer minor units and a currency, which knows how many decimals it has.

Never a float. `Money(amount=4500, currency="EUR")` is 45.00 euro; the same amount in JPY is 4500
yen and in KWD 4.500 dinar, because the currency's own exponent says so.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

_TWO = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP "
    "CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR "
    "JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN "
    "NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP "
    "SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VES WST XCD XCG YER ZAR ZMW ZWG"
)
_NONE = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE = "BHD IQD JOD KWD LYD OMR TND"

EXPONENTS: dict[str, int] = (
    dict.fromkeys(_TWO.split(), 2) | dict.fromkeys(_NONE.split(), 0) | dict.fromkeys(_THREE.split(), 3)
)
AMOUNT_MAX = 10**12
"""The largest price or total: a bound that every sum of a claim stays far below 64 bits with."""


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """An amount in minor units of one currency."""

    amount: int
    currency: str

    def __str__(self) -> str:
        exponent = EXPONENTS[self.currency]
        return f"{Decimal(self.amount).scaleb(-exponent):.{exponent}f} {self.currency}"


def is_currency(code: str) -> bool:
    """Whether this is the ISO 4217 code of a currency in use."""
    return code in EXPONENTS
