"""The balance gateway: buyers pay from accounts in the shop's own database, such as credit and gift cards."""
