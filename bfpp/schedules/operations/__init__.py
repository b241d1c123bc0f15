"""Operations and the streams that they run on, declared once."""
