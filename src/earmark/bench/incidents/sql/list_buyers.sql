-- Every request has a buyer of its own, so a row says that this request took effect. All rows: each is compared.
SELECT buyer FROM bookings WHERE event_id = ANY ($1::text[])
